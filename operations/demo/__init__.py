"""`make demo`: the whole path on this machine, from a platform file to a trained model, a worker lost on the way."""
