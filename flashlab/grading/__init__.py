'''Checks, misconceptions, the sandboxed runner and reports: how an exercise is made and marked.

What happens to a submission, in the order of the files:

    cells             takes the solution cells out of a notebook
    sandbox           starts a child under bubblewrap; box/ is all of ours that lies in it (wire, limits, child)
    serve             HBM and SRAM on our side of the pipe: tiles are served, so bytes are counted
    runner            one call at a time, with limits (kernel_rules, kernel_runner: the same for Triton kernels)
    judge             compares an answer with ours and says what differs
    misconceptions    what the difference usually means
    marks             every test, its points, the lines that `flashlab check` prints
    budget            a judge for low precision: at most twice the error of plain PyTorch
    checking, progress  for the reader; grade, report and others for an instructor
    plain             text from outside that can move no cursor; submissions, roster, gradebook, formgrade: what comes from a platform
    class_files       what a class gets, with spreadsheet (grades.csv), words (points given by hand) and submitted (nbgrader's tree)
    release           exercises/ from solutions/

**How to make an exercise**, with e04_flash_forward as the example. Three files:

1. `flashlab/grading/exercises/e04_flash_forward.py` (students can read it) defines EXERCISE:

        EXERCISE = Exercise(
            name="e04_flash_forward",           # the folder, the notebook and this module
            title="The tile loop in NumPy",     # as a table of contents says it
            lesson="04_tiling",
            tests=(Test("small", 2, "flash_forward", cases, call, judges), ...),    # easy to hard; check stops at the first failure
        )

   - a case is a small dict (sizes, seed, dtype); write the smallest first, so that a failing input can be tried by hand;
   - `call(case) -> Call` makes what enters the sandbox. Two ways: `arrays=` go in as plain keyword arguments and
     `returns=("bytes", "flops")` names what the function returns (a number, array, text, a tuple or a dict of these);
     `served=` stay here as objects with load(rows), store(rows, tile) and shape, and `memory` with hold and release comes
     along: then the bytes are counted. `options=` are plain keyword arguments;
   - `judges` look at the Answer in turn: `values(expected, atol=, rtol=, imitations=, symptom=)` with an `expected(call)`
     that computes in float64 by another algorithm than the student's, and `traffic(closed_form)`. Any function
     (call, answer) -> Finding | None will do. A test of bytes judges the values too, or moving data is worth points;
   - `imitations` maps names of misconceptions.py to functions like `expected` with that one thing done wrong: where the
     first wrong array is what the imitation gives, the student is told its name (what follows a comma in it tells two pictures of one apart). `symptom` names what has no exact
     picture (NaN in rows without a key). A new misconception is a line in misconceptions.py;
   - the points are whole and add up to those of the notebook's test cells (a test sees to it).

2. `solutions/e04_flash_forward/e04_flash_forward.ipynb`, nbgrader's source format. Students get exactly it, without what
   stands between BEGIN and END lines. It has, in this order: goal, what must hold, hints behind <details>, an import cell,
   one solution cell for each function, the check cell, one or two questions in words.
   - a solution cell: nbgrader metadata {grade_id, solution: true, grade: false, locked: false, task: false,
     schema_version: 3}; its answer between `### BEGIN SOLUTION` and `### END SOLUTION`, indented, which becomes
     `raise NotImplementedError`. It sees np, math and tiles and nothing else: no import of flashlab;
   - the check cell: {grade: true, locked: true, solution: false, points: 10}, `check("e04")`, then the hidden
     `assert check("e04", hidden=True)` between `### BEGIN HIDDEN TESTS` and `### END HIDDEN TESTS`;
   - an answer in words: a markdown cell {grade: true, solution: true, points: 2} whose whole text is the rubric between
     `### BEGIN MARK SCHEME` and `### END MARK SCHEME`.
   Files a student needs go to solutions/<name>/files/. `make exercises` writes exercises/; commit both.

3. `solutions/e04_flash_forward/hidden.py`: CASES = {test name: more cases}. Students never have them.

Then `tests/exercises/test_e04_flash_forward.py`: `assert_caught` and `solution_of("e04")` of tests/exercises/exercise_cells.py
give the cells; MUTANTS maps each misconception to text edits of the solution and the test at which it must fail. That
every solution gets full marks, every stub zero, and that exercises/ is fresh is tested for all exercises at once
(tests/exercises/test_all.py).

**A Triton kernel** is a Test with kernel=True: `function` is the kernel's name, `call` gives its arguments: `arrays` (a
tensor each, named as the parameter), `options` (numbers and constexprs), `grid`, `strides={"q": (…)}` where rows are not
contiguous (pass the same numbers as options), `stores=("o",)`. answer.arrays holds those, answer.trace what our tracer
counted, so `values` and `traffic` work as above, and `tiles_at_most` refuses a tile larger than the given sizes. In the
trace a parameter `q_ptr` is called q; INF and LOG2_E are there as names. Masked lanes of a load without other= hold NaN,
since a GPU may leave anything there; where that alone is wrong, the student is told so. The cell may hold @triton.jit functions only (kernel_rules says what
they may use). On a reader's GPU check() also makes the calls of `gpu_cases` (with `cast="float16"` or "bfloat16" in the
Call, `exact=("lse",)` for arrays that stay float32), judged by `gpu_judges`, whose tolerance is for those dtypes: an extra,
worth no points; `within_budget(plain)` of grading/budget.py knows the tolerance. The first call of each test is also compiled for
sm_80, without the interpreter, so let a test begin with each constexpr that opens a branch. In an exercise's own tests KernelMutants
of exercise_cells.py runs all mutants in one child.

To try: `PYTHONPATH=. python -m flashlab.cli check e04 --file solutions/e04_flash_forward/e04_flash_forward.ipynb`.
'''
