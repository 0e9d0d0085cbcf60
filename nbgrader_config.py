"""nbgrader on this course (extra `instructor`): its formgrader for answers in words. See instructor.md."""

c = get_config()  # noqa: F821  nbgrader defines it

c.CourseDirectory.course_id = "flashlab"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "__pycache__", "*.pyc", "hidden.py"]  # hidden.py: never in exercises/

# The same stubs as `make exercises` (flashlab/grading/release.py).
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError  # your code here, in place of this line"}
c.ClearSolutions.text_stub = "*Your answer, in two or three sentences, in place of this line.*"

# Students' code runs in flashlab's sandbox only: nbgrader reads their answers in words and runs nothing.
c.Autograde.autograde_preprocessors = [
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "flashlab.grading.formgrade.PlainAnswers",  # a script in an answer would run in the grader's browser
]

# Notebooks come from a learning platform, not through nbgrader's exchange folder.
c.ExchangeFactory.list = "flashlab.grading.formgrade.NoExchange"
