"""Command `init`: a project's folder of the user."""
