"""Commands that submit work, their options, and the body of a submission."""
