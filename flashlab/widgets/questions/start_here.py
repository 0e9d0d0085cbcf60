"""Lesson 00: how to work here, and what timing must not forget."""

from flashlab.widgets.quiz import single, true_false

QUESTIONS = [
    single(
        "*flash* and *standard* computed the same attention. Why was flash faster?",
        right="It moved fewer bytes between memory and processor.",
        wrong={
            "It did fewer multiplications.": "It did the same ones. The difference between the outputs was only rounding.",
            "It approximated the small weights by zero.": "Nothing was left out: the outputs agreed to rounding.",
            "It used another number type.": "Both got, and gave, the same type.",
        },
        because="It never stored n × n matrices that standard attention writes and reads back.",
    ),
    single(
        "You time `a @ a` on a GPU with `time.perf_counter()` around it, and nothing else. What did you time?",
        right="How long it takes to queue the work.",
        wrong={
            "The matrix product.": "The call returned before the GPU was done. Wait for it, or let the GPU keep the time.",
            "The matrix product and the copy of its result to the CPU.": "Nothing was copied: the result stays on the GPU.",
        },
        because="A GPU works behind the program's back. `time_call` records events on the GPU and waits for the second one.",
    ),
    true_false(
        "A wrong attention kernel usually crashes or gives nan.",
        False,
        "The loop without its ✂ line gave plausible numbers. Only a comparison with a right answer found the wrong rows.",
    ),
]
