"""What the user edits, and what it means: platforms, jobs, and the one table of instance facts."""
