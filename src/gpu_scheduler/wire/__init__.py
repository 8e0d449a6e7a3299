"""Say it: the JSON and protobuf forms of the model. Translation only, no decisions."""
