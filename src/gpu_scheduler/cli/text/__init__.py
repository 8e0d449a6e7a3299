"""Text in and out: tables, colours and JSON; durations, sizes and times as people write them."""
