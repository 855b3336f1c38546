"""The workers that train together: where they meet, and the process groups by which they communicate."""
