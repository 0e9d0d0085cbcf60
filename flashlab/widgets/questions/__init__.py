"""The quiz questions of each lesson, one file a quiz: `quiz("tiling")` asks the QUESTIONS of tiling.py."""
