"""`make demo`: the whole path on this machine, from a platform file to a trained model, with a worker lost on the way."""
