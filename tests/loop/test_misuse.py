"""What users do by mistake, in programs/misuse.py: refused in words, and the job goes on."""

import subprocess
import sys

from jobs import launch, launch_command, plain_environment


def test_mistakes_are_refused_in_words_and_the_job_goes_on():
    result = launch("misuse.py", workers=2, servers=1)
    assert result.code == 0, result.output
    assert result.output.count("right") == 2


def test_output_that_the_terminal_cannot_show_does_not_stop_the_job():
    program = "import sys; [sys.stdout.buffer.write('\\u00e9 loss\\n'.encode()) for _ in range(20_000)]"
    command = launch_command(1, 0, [sys.executable, "-c", program])
    environment = plain_environment({"PYTHONIOENCODING": "ascii"})
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"? loss") == 20_000
