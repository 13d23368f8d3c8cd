"""What goes wrong at run time: nothing is released by it, and nothing is left behind."""
