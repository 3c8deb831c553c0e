"""The closing line that tools/check counts."""


def pytest_terminal_summary(terminalreporter):
    n = {k: len(terminalreporter.stats.get(k, [])) for k in ("passed", "failed", "error", "skipped")}
    terminalreporter.write_line("")
    terminalreporter.write_line(f"e2e: {n['passed']} passed, {n['failed'] + n['error']} failed, {n['skipped']} skipped")
