"""What lies in the sandbox beside the student's code. Nothing of it knows a seed, an expected value or a test."""
