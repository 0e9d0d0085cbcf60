"""The one table of error messages: every fault that the course knows, worded once.

A text says which argument, what it was, what is needed and what to do. This module imports nothing.
"""

from __future__ import annotations

# {what can be wrong: (the exception it raises, the text)}. `error()` fills the text in; tests/test_errors.py sees to it that
# each line is raised, and triggered in a test.
ERRORS: dict[str, tuple[type[Exception], str]] = {
    "size": (ValueError, "{argument} is {given}; it must be a whole number of at least {least}. Pass {argument}={least} or more."),
    "dtype": (ValueError, "dtype is {given!r}; it must be one of {allowed}. Pass it as a string, e.g. dtype='float16'."),
    "scale": (TypeError, "scale is {given}; it must be a number. Pass a float, or None for 1/√head_dim."),
    "kv_heads": (
        ValueError,
        "kv_heads is {given}, but heads is {heads}; heads must be a multiple of kv_heads, so that each key head serves"
        " the same number of query heads. Pass one of {allowed}.",
    ),
    "numpy_dtype": (
        TypeError,
        "{argument} has dtype {given}; the NumPy algorithms take float16, float32 or float64 (NumPy has no bfloat16)."
        " Convert it first, e.g. {argument}.astype('float32').",
    ),
    "one_head": (
        ValueError,
        "{argument} has shape {given}; the NumPy algorithms work on one head, shape (n, head_dim). Pass one head, e.g."
        " {argument}[0, 0].",
    ),
    "head_dim_differs": (
        ValueError,
        "{argument} has head_dim {given}, but q has {needed}; a score is a dot product, so both need the same head_dim.",
    ),
    "n_k_differs": (ValueError, "v has {given} rows, but k has {needed}; every key needs one value row."),
    "four_dims": (
        ValueError,
        "{argument} has shape {given}; it must be (batch, heads, n, head_dim). Add the missing dimensions with"
        " {argument}[None, None].",
    ),
    "batch_differs": (ValueError, "{argument} has batch {given}, but q has {needed}; q, k and v need the same batch."),
    "block": (ValueError, "{argument} is {given}; a tile needs at least 1 row. Pass a whole number such as {argument}=64."),
    "sram_full": (
        MemoryError,
        "holding {tile} ({tile_bytes:,} bytes) needs {needed:,} bytes of SRAM, but the budget is {budget:,}. Held now:"
        " {held}. Use smaller tiles (block_q, block_k) or a larger sram_bytes.",
    ),
    "outside": (
        IndexError,
        "{axis} {start} to {stop} of {tensor} were asked for, but it has {n} {axis}. Cut the last tile to what is left,"
        " as tiles(n, block) does.",
    ),
    "store_shape": (
        ValueError,
        "a tile of shape {given} was stored to {tensor} at a place of shape {needed}. Store exactly the rows you name.",
    ),
    "slice": (
        TypeError,
        "{axis} of {tensor} are given as {given!r}; they must be a slice of whole numbers without a step, such as slice(0, 64), since the"
        " {axis} of a tile lie side by side. Pass one.",
    ),
    "no_columns": (TypeError, "columns of {tensor} were asked for ({given!r}), but it has one number in each row. Leave cols out."),
    "hbm_array": (
        TypeError,
        "{argument} is {given}; HBM here holds NumPy arrays of shape (rows,) or (rows, cols). Pass one, e.g. np.asarray({argument}), or one"
        " head of several.",
    ),
    "not_held": (LookupError, "SRAM holds no {given!r}, so it cannot be released. Held now: {held}. Pass names of these."),
    "trace_note": (ValueError, "{given} is noted before the trace has an event, and a value belongs to the event before it. Append the event first."),
    "gpu_unknown": (KeyError, "no GPU called {given!r} in flashlab.hardware. Known: {allowed}."),
    "trace_op": (ValueError, "op is {given!r}; a trace knows {allowed}."),
    "trace_json": (ValueError, "this JSON is not a trace: {why}. Make one with Trace.to_json()."),
    "alt": (
        ValueError,
        "alt is {given!r}; a figure needs one whole sentence that states what it shows, for readers who cannot see it."
        " Write one of five words or more that ends in a full stop.",
    ),
    "quiz_text": (ValueError, "{what} is {given!r}; it needs a text. Write one."),
    "quiz_no_right": (ValueError, "the question {question!r} has no right answer. Give {needed}."),
    "quiz_no_wrong": (ValueError, "the question {question!r} has no wrong option, so there is nothing to choose. Give wrong={{option: why not}}."),
    "quiz_twice": (ValueError, "the question {question!r} offers {given!r} twice. Word one of them differently or drop it."),
    "quiz_number": (ValueError, "an answer or hint of {question!r} is {given!r}; it must be a finite number. Pass an int or a float."),
    "quiz_question": (
        TypeError,
        "Quiz takes one or more questions made by single, multiple, number or true_false; given: {given}. For a file of"
        " them use quiz(name).",
    ),
    "quiz_unknown": (ValueError, "no quiz called {given!r} in flashlab/widgets/questions. Known: {allowed}."),
    "quiz_file": (ValueError, "flashlab/widgets/questions/{given}.py defines no QUESTIONS. Add QUESTIONS = [single(...), ...]."),
    "gpu_dtype": (
        ValueError,
        "{gpu} has no data-sheet rate for {given!r}: it does not compute in that dtype, or not in the units that matter"
        " here. Pass one of {allowed}.",
    ),
    "triton_first": (
        RuntimeWarning,
        "triton was imported before flashlab, for {given} mode, but kernels run in {needed} mode here; Triton decides"
        " when it is imported. Restart the kernel (or Python) and import flashlab before triton.",
    ),
    "old_ptxas": (
        RuntimeWarning,
        "ptxas {given}, with which Triton assembles kernels here, can build wrong code for Hopper, and the driver cannot load that of"
        " the newer one that Triton brings. Update the driver to one for CUDA 13, or install Triton 3.8.",
    ),
    "no_gpu": (RuntimeError, "{what} needs a CUDA GPU that Triton can use. {why}. {hint}."),
    "port_taken": (OSError, "port {given} is taken by another program. Stop that one, or {instead}."),
    "no_jupyterlab": (RuntimeError, "JupyterLab is not installed for {python}. Install the course: make lab, or pip install -e ."),
    "no_course": (
        FileNotFoundError,
        "no folder with the course's notebooks/ is at or above {given}. Change into your clone of the course, then try again.",
    ),
    "work_folder": (OSError, "the folder for your copies, {given}, cannot be used: {why}. Pass another one: --work FOLDER."),
    "lesson_name": (LookupError, "no lesson is called {given!r}; there are: {allowed}."),
    "record_missing": (FileNotFoundError, "there is no notebook {given}. Pass the path of an .ipynb file."),
    "record_failed": (
        RuntimeError,
        "{given} was not recorded and is as it was: cell {cell} raised {why}. Mend the cell, then record again.",
    ),
    "softmax_scores": (
        ValueError,
        "scores is {given}; one row of at least one number is needed, each finite or -inf. Pass a list such as"
        " [1.2, 0.3, 2.1].",
    ),
    "softmax_values": (
        ValueError,
        "values has shape {given}; one row for each of the {needed} scores is needed. Pass values of shape"
        " ({needed}, head_dim).",
    ),
    "softmax_trace": (
        ValueError,
        "the function's trace has no {missing}, so there is nothing to show. Call memory.compute('row_sum', rows, cols,"
        " row_max=..., row_sum=..., rescale=...) once for each tile, as softmax_two_passes does.",
    ),
    "softmax_result": (
        ValueError,
        "the function returned {given} number(s), but {needed} are needed. Return the weights, or o where values are given.",
    ),
    "dollars": (ValueError, "dollars_per_hour is {given!r}; a price is a number of at least 0. Pass e.g. dollars_per_hour=3.0."),
    "no_line": (ValueError, "no line of {function} contains {given!r}, so nothing was deleted. Copy the text from the line itself."),
    "not_a_trace": (TypeError, "TileLoop shows traces, but was given {given}. Pass memory.trace, not the memory or o."),
    "passes": (ValueError, "passes is {given}; a softmax here takes 3, 2 or 1. Pass passes=3, passes=2 or passes=1."),
    "lockstep": (ValueError, "lockstep is {given!r}; programs that run together keep step by {allowed}. Pass lockstep='bytes' or leave it out."),
    "fraction": (ValueError, "{argument} is {given!r}; it must be a number {needed}. Pass e.g. {argument}={example}."),
    "trace_no_shape": (
        LookupError,
        "{given} moves bytes, but the trace has no shape of it, which a cache needs. Give it: Trace(tensors={{{given!r}: (rows, cols,"
        " bytes of an element)}}).",
    ),
    "trace_kernel": (
        TypeError,
        "kernel is {given}; trace runs a function under @triton.jit (a Gluon kernel has no interpreter). Pass the kernel"
        " itself, without [grid].",
    ),
    "trace_grid": (
        ValueError,
        "grid is {given}; it must be one to three whole numbers of at least 0, or a function that returns them. Pass e.g."
        " (4,).",
    ),
    "trace_argument": (TypeError, "{kernel} takes no argument {given}. Its parameters are {allowed}."),
    "trace_missing": (
        TypeError,
        "{kernel} was not given {missing}; {why}. Pass each by name, e.g. trace({kernel}, grid, ..., {example}=64).",
    ),
    "trace_value": (TypeError, "{kernel} was given {given} for {argument}, but {needed}. Pass {instead}."),
    "trace_narrow": (
        TypeError,
        "{kernel} computes in {given} ({line}), where Triton's interpreter gives wrong numbers without saying so. Cast to"
        " float32 right after the load, or trace with float16 tensors, which move the same bytes as bfloat16.",
    ),
    "trace_outside": (
        IndexError,
        "program {program} of {kernel} would {verb} {tensor} at element offset {offset:,} ({line}), but {tensor}, of shape"
        " {shape} and strides {strides}, has no such element; {outside:,} of the {lanes:,} lanes that no mask switches off"
        " are outside. Mask them off, e.g. mask=index < n.",
    ),
    "trace_strides": (
        ValueError,
        "{tensor}, of shape {shape} and strides {strides}, has elements that only a list of them all tells from what lies between,"
        " and a list of {given:,} is too long; at most {most:,} are listed. Pass {tensor}.contiguous(), or a smaller part.",
    ),
    "trace_no_tensor": (
        TypeError,
        "{kernel} would {verb} memory ({line}), but none of its arguments is a tensor. Pass tensors, not addresses.",
    ),
    "trace_watch": (LookupError, "watch names {missing}, but {kernel} and its helpers have no such local. They have {allowed}."),
    "count_target": (LookupError, "{given!r} names no kernel of a file. Pass FILE.py:kernel, e.g. flashlab count softmax.py:softmax_kernel."),
    "count_option": (LookupError, "flashlab count {way} can do nothing with {given}, which is for flashlab count {taker}. {hint}."),
    "count_record": (LookupError, "--record knows no {given!r}: it counts the whole grid, or steps. Pass nothing or steps; for one workload pass --measured instead."),
    "count_file": (FileNotFoundError, "there is no file {given}. Pass the path of a Python file that launches the kernel."),
    "count_none": (
        LookupError,
        "{file} launched no kernel called {kernel}; it launched {launched}. Add a launch to the file, under"
        " if __name__ == '__main__' if you like: it is run as a program.",
    ),
    "workload": (LookupError, "no workload is called {given!r}; there are: {allowed}. Or pass a function of your own as FILE.py:function."),
    "workload_pass": (LookupError, "{workload} has no pass {given!r} to count; it has: {allowed}. Pass one of these."),
    "workload_function": (LookupError, "{file} defines no function {given}; it defines {allowed}. Pass FILE.py:function, which is called with q, k, v."),
    "ncu_missing": (
        RuntimeError,
        "there is no ncu on PATH ({given}), and only Nsight Compute reads the GPU's counters. Install nsight-compute (it comes"
        " with the CUDA toolkit) and put ncu on PATH.",
    ),
    "ncu_closed": (
        RuntimeError,
        "the GPU's counters are closed to you ({given}). Run it as root, or ask whoever runs this machine for the driver's"
        " option NVreg_RestrictProfilingToAdminUsers=0; in a container it needs --cap-add SYS_ADMIN.",
    ),
    "ncu_failed": (RuntimeError, "ncu ended with exit status {given}; it said: {said}. Mend what it names, then count again."),
    "ncu_timeout": (RuntimeError, "ncu had not ended after {given} s and was stopped; nothing was counted. Count fewer or smaller problems at once."),
    "ncu_table": (RuntimeError, "ncu's table begins with {given}, and lacks kernels' names and sizes or a row of units. Count with a newer Nsight Compute."),
    "ncu_unit": (RuntimeError, "ncu gave {metric} in {given!r}, which is none of {allowed}. Add the unit to UNITS in flashlab/traffic/ncu.py."),
    "ncu_metric": (RuntimeError, "ncu has no {given} of {kernel} on this GPU, so there is nothing to show. Count on another GPU."),
    "count_not": (RuntimeError, "{given} was not counted: {why}. Mend that or choose another problem."),
    "count_no_kernel": (RuntimeError, "{given} launched no kernel on the GPU. Pass a function that computes with q, k, v where they are."),
    "count_recorded": (LookupError, "{given} was not counted here and is not recorded. {why} Recorded are: {allowed}."),
    "kernel_dtype": (TypeError, "{argument} has dtype {given}; the kernels take float16, bfloat16 and float32. Convert it first, e.g. {argument}.half()."),
    "dtype_differs": (TypeError, "{argument} has dtype {given}, but q has {needed}; q, k and v need the same dtype. Convert it: {argument}.to(q.dtype)."),
    "device_differs": (ValueError, "{argument} is on {given}, but q is on {needed}; q, k and v need the same device. Move it: {argument}.to(q.device)."),
    "kernel_device": (ValueError, "q is on {given}, but Triton kernels run on the GPU here. Move q, k and v there: q.cuda()."),
    "head_dim_large": (ValueError, "head_dim is {given}; the kernels take at most {most}. Split the heads into smaller ones."),
    "backend": (ValueError, "backend is {given!r}; it must be one of {allowed}. Leave it out to get the fastest that fits."),
    "sink": (
        ValueError,
        "sink has shape {given} on {device}; it must be one number for each query head, shape {needed}, on {place}. Pass e.g."
        " torch.zeros(heads, device=q.device).",
    ),
    "forward_mode": (
        NotImplementedError,
        "{argument} carries a tangent (torch.func.jvp, dual numbers), but attention has no forward-mode derivative."
        " Use reverse mode: backward() or torch.autograd.grad().",
    ),
    "double_backward": (
        RuntimeError,
        "a second derivative was asked for, but {given} has none. Drop create_graph=True, or use"
        " flashlab.kernels.standard.standard, which PyTorch can differentiate twice.",
    ),
    "tensor": (TypeError, "{argument} is of type {given}; it must be a tensor. Convert it first: torch.as_tensor({argument})."),
    "step": (LookupError, "no step of the ladder is called {given!r}; there are: {allowed}."),
    "step_inputs": (ValueError, "the steps take {needed}, and {argument} has {given}. kernels.forward.forward takes any."),
    "mask": (
        TypeError,
        "mask is of type {given}; it must be a Mask, e.g. masks.window(128, 0), or two joined by &. For one given as a"
        " tensor write a visible() that loads it: see flashlab/kernels/masks.py.",
    ),
    "mask_function": (TypeError, "the mask {mask} defines {given}, which no kernel calls. A mask may define {allowed}."),
    "mask_plain": (TypeError, "the mask {mask} defines {given} without @triton.jit, so no kernel can call it. Put @triton.jit above it."),
    "mask_empty": (TypeError, "the mask {mask} defines neither visible nor score, so it does nothing. Define one, under @triton.jit."),
    "mask_range": (
        TypeError,
        "the mask {mask} defines {given} but not visible, so nothing would hide what lies between a range and its tiles' edges."
        " Define visible too.",
    ),
    "mask_arguments": (
        TypeError,
        "the functions of the mask {mask} do not end with the same parameters. Each takes the kernel's arguments first"
        " ({needed}), then the mask's own parameters.",
    ),
    "mask_params": (TypeError, "the mask {mask} was given {given} parameter(s), but its functions take {needed}. Pass {needed}."),
    "mask_number": (ValueError, "the mask {mask} was given {given:,}; a whole number in a mask is at most {most:,} (2**30) in size. For no limit, give that."),
    "mask_whole": (TypeError, "the mask {mask} takes a whole number for {argument}, and was given {given}. Pass an int."),
    "mask_per_head": (
        ValueError,
        "{argument} of the mask {mask} is {given}; a kernel reads it by head, so it must be a tensor of one number for each query"
        " head, shape {needed}. Where one number is for all, pass e.g. torch.full({needed}, 0.5, device=q.device).",
    ),
    "mask_narrow": (
        TypeError,
        "{function} ({line}), of a mask or called by one, computes in {given}, where Triton's interpreter gives wrong numbers without saying"
        " so. Cast to float32 before the arithmetic: x.to(tl.float32).",
    ),
    "mask_value": (TypeError, "a parameter of the mask {mask} is of type {given}; it must be an int, a float or a tensor. Convert it first."),
    "mask_no_dscore": (
        RuntimeError,
        "the mask {mask} changes scores but defines no dscore, so it has no gradient. Define dscore, the derivative of its score.",
    ),
    "mask_gradient": (
        ValueError,
        "a tensor of shape {given} in mask needs a gradient, but masks give none to their tensors. Pass it detached: tensor.detach().",
    ),
    "mask_device": (ValueError, "a tensor in mask is on {given}, but q is on {needed}; both need the same device. Move it: tensor.to(q.device)."),
    "bench_part": (LookupError, "part {given!r} is none: it is which of how many, such as 1/2. Pass --part 1/2 on one GPU and 2/2 on another."),
    "steps_name": (LookupError, "the ladder has no step {given!r}; its steps are: {allowed}. Pass one or more of these."),
    "steps_head_dim": (LookupError, "the steps are timed at head_dim {allowed}, not {given}. Pass one of these, or time kernels.steps.step yourself."),
    "bench_device": (LookupError, "no GPU {given!r} is here; there are: {allowed}. Pass e.g. --device cuda:0."),
    "bench_option": (LookupError, "{what} can do nothing with --{given}, which is for {takers}; it takes {allowed}. Leave --{given} out."),
    "bench_place": (OSError, "--{option} cannot be written: {place} {why}. Pass a {needed} that you may write to."),
    "page_marks": (LookupError, "{page} has no line {mark!r}, between two of which the table goes. Put both back, as `git diff` shows them."),
    "bench_compare": (LookupError, "compare takes two files of records, and was given {given}: flashlab bench compare OLD.jsonl NEW.jsonl."),
    "bench_missing": (FileNotFoundError, "there is no file {given} to compare. Results are written by flashlab bench --out {given}."),
    "bench_files": (LookupError, "{what} takes no files, and was given {given}. Results go to --out FILE; two files are for compare."),
    "timed_spread": (
        RuntimeError,
        "the spread of {given:.0%} is too wide to report, above the {most:.0%} asked for: {timing}. Time again when nothing else runs,"
        " or with a larger budget_ms.",
    ),
    "timed_clocks": (
        RuntimeError,
        "the timer says {given:.3g} ms where a second clock says {other:.3g} ms, so nothing is reported. Something replaced the timer, or"
        " the work does not start when the call does.",
    ),
    "timed_elsewhere": (
        RuntimeError,
        "the GPU was busy for {given:.3g} ms after the call's own stream was done, and the timer had seen {told:.3g} ms: work runs on"
        " another stream. Let the call wait for it: torch.cuda.current_stream().wait_stream(stream).",
    ),
    "timed_unfinished": (
        RuntimeError,
        "the call's {what} changed after it had returned, so its time is not that of the work. Wait for the work inside the call.",
    ),
    "timed_cached": (
        RuntimeError,
        "the call gave the same result for new {what}, so it did not compute it. Take out what keeps results between calls.",
    ),
    "timed_not_finite": (
        RuntimeError,
        "all {given:,} numbers of the result are NaN or infinite, for old and new inputs alike: whether they were computed cannot be seen. Mend it first.",
    ),
    "timed_on_gpu": (
        RuntimeError,
        'the call works on {given} and was timed with the CPU\'s clock, which stops before the work is done. Give device="cuda".',
    ),
    "timed_wrong": (
        RuntimeError,
        "the result is off by {given:.2g} of its norm, above {most:.2g}; the time of a wrong result is not reported. Mend the function, or"
        " what expected() gives.",
    ),
    "timed_nothing": (
        TypeError,
        "the call returned {given}; with fresh= or expected= it must return its result, a tensor or a tuple of tensors. Return it.",
    ),
    "timed_expected": (
        TypeError,
        "expected() returned {given}; it must give what the call must return, a tensor or a tuple of tensors. Return it, or leave expected= out.",
    ),
    "timed_shapes": (
        RuntimeError,
        "the call returned shape {given}, and expected() gives {needed}; they must be the same, tensor for tensor. Mend the function, or what expected() gives.",
    ),
    "timed_device": (
        ValueError,
        "device is {given!r}; calls are timed on a CPU and on CUDA GPUs, here {allowed}. Pass one of these, or leave device out.",
    ),
    "gpu_fraction": (
        ValueError,
        "FLASHLAB_GPU_FRACTION is {given!r}; it must be a number above 0 and up to 1, such as 0.25 for a quarter of the GPU's memory.",
    ),
    "gpu_memory": (
        MemoryError,
        "{device} ran out of memory: a call asked for {asked}, and {unused:.1f} of {total:.1f} GiB are free now{limit}. What the call held"
        " was freed, so you can go on: take a smaller n or batch, or del tensors you no longer need.",
    ),
    "cpu_memory": (
        MemoryError,
        "the CPU ran out of memory: a call asked for {asked}. What the call held was freed, so you can go on: take a smaller n or batch,"
        " or del tensors you no longer need.",
    ),
    "gpu_busy": (
        TimeoutError,
        "{device} was still taken after {waited:g} s, with {ahead} before you. Try again later, wait longer (FLASHLAB_WAIT_S=900), or read"
        " recorded results: flashlab.bench.records.load().",
    ),
    "wait_s": (ValueError, "FLASHLAB_WAIT_S is {given!r}; it must be a number of seconds of at least 0, such as 300."),
    "peer": (LookupError, "no peer is called {given!r}; there are: {allowed}."),
    "length_peer": (LookupError, "lab 1 does not compare {given!r}; its table has a column for each of {allowed}. Pass one or more of these."),
    "grid_head_dim": (LookupError, "the grid has no head_dim {given}; it has {allowed}."),
    "not_a_record": (ValueError, "{file}, line {line}, is not a record: {why}. Delete the line or measure again."),
    "figure_device": (LookupError, "the figure needs {needed}, of one device; there are those of {given}."),
    "port_number": (ValueError, "{given} is no port: a port is a whole number from 1 to 65535. Pass e.g. --port 8888."),
    "port_closed": (OSError, "port {given} is closed to you: ports below 1024 are for root. Pass one from 1024 up, e.g. --port 8888."),
    "exercise": (LookupError, "no exercise is called {given!r}; there are: {allowed}."),
    "no_solutions": (FileNotFoundError, "{given} has no solutions/, from which exercises are made: it is a class's copy. Use the instructor's course."),
    "release": (RuntimeError, "{given} cannot be released: {why}. Mend the solution notebook, then make exercises."),
    "submission": (ValueError, "{given} cannot be marked: {why}. Hand in the notebook of the exercise, saved by Jupyter."),
    "no_solution_cell": (ValueError, "{given} has no cell that defines {needed}. Put the cell of the exercise back and fill it in."),
    "no_submissions": (FileNotFoundError, "there is no notebook in {given}. Pass a folder of notebooks, nbgrader's submitted/, or the zip of Canvas or Moodle."),
    "submissions_missing": (FileNotFoundError, "there is no {given}. Pass a folder of notebooks, or the zip of Canvas or Moodle."),
    "submissions_kind": (ValueError, "{given} is neither a folder nor a zip. Pass a folder of notebooks, or the zip of Canvas or Moodle."),
    "roster": (ValueError, "{given} is no gradebook of Canvas: {why}. Export it in Canvas under Grades, Export, and pass that file."),
    "gradebook": (ValueError, "nbgrader's gradebook {given} cannot be used: {why}. Pass the gradebook.db of this course, or leave --gradebook out."),
    "submitted": (ValueError, "{given} cannot be written for nbgrader: {why}. Or leave --submitted out."),
    "no_sandbox": (
        RuntimeError,
        "students' code is marked in a sandbox only, and here {why}. {fix}. To mark without one all the same, where nothing can be lost:"
        " --unsafe.",
    ),
    "course_file": (OSError, "{given}, a file of the course, cannot be read: {why}. Mend its permissions, or get the course again."),
}


def error(name: str, **values: object) -> Exception:
    """The exception for one line of the table, filled in: `raise error("block", argument="block_q", given=0)`."""
    kind, text = ERRORS[name]
    made = kind(text.format(**values))
    made.line = name
    return made


def is_known(fault: BaseException) -> bool:
    """Whether `error()` made it, so that its text says what to do and nobody needs a traceback."""
    return getattr(fault, "line", None) in ERRORS
