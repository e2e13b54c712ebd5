"""Google Cloud, for the program and the commands: calls, the table of resource kinds, and what is read with it.

`google_session` opens the one session: the user's credentials, the project that calls count for, and how Google states an error. Two callers
use it. `google_api` is that of the commands: pages, retries, and answers that are present, absent or unknown. `google_calls` is that of the
program, which waits in an event loop or before it declares anything: few calls, each within a limit, without retries.
`kinds` has everything that differs between kinds of resources; `search`, `deletion`, `capacity` and the commands read it.
"""
