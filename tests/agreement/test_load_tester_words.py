"""The load tester repeats a few words of the product, because a package knows nobody: the same words have to mean the same."""

from gemma_serving.contracts import plain_text
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.planning import numbers
from gemma_serving.scripts.bench.bench_options import BenchOptions
from gemma_serving.scripts.stack import access
from loadtest import command_line, subcommands
from loadtest.client import plain_text as theirs
from loadtest.command_line import described_options
from loadtest.endpoint import API_KEY_VARIABLE


def test_text_of_a_server_cannot_steer_a_terminal_through_either():
    every = "".join(chr(code) for code in range(0x11000))
    assert theirs.for_terminal(every) == plain_text.for_terminal(every)


def test_numbers_and_exit_codes_are_the_same():
    assert numbers.LARGEST == command_line.LARGEST
    codes = (ExitCode.DONE, ExitCode.FAILED, ExitCode.REFUSED, ExitCode.INTERRUPTED)
    assert codes == (subcommands.DONE, subcommands.FAILED, subcommands.REFUSED, subcommands.INTERRUPTED)
    assert API_KEY_VARIABLE == access.API_KEY_VARIABLE


def test_the_command_has_every_option_of_the_load_tester_with_the_same_words():
    ours = {option.words: option for option in described_options(BenchOptions)}
    theirs = {option.words: option for option in described_options(subcommands.LoadTestOptions)}
    assert ours.keys() - theirs.keys() == {"--stack STACK", "--accelerator NAME"}
    assert theirs.keys() <= ours.keys()
    assert {words for words in theirs if theirs[words] != ours[words]} == {"--usd-per-hour USD"}  # a plan has a price
