"""What the product costs, measured beside the floor below it, in one run of interleaved pairs."""
