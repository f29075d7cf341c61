"""What a machine can do at most, and how near the ops of a model come to it."""
