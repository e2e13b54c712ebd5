"""Google Cloud calls, the table of resource kinds, and searches that use it, for the program and the commands.

`google_session` opens the one session: credentials, quota project, and the parsing of Google's errors.
`google_api` serves the commands: pages, retries, and answers that are present, absent or unknown.
`google_calls` serves the program, which calls from an event loop: each call has a time limit, without retries.
`kinds` has everything that differs between kinds of resources.
"""
