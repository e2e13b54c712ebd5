"""What Google's compiler and upstream's own server say of the planner's TPU rows: the rows, their answers, and the page."""
