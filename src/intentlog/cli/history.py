"""The records of a branch in words."""

from __future__ import annotations

from intentlog.core import records as r


def what(record: r.Record) -> str:
    """What a record says, without its payload."""
    if isinstance(record, r.INTENT_RECORDS):
        generation = f" generation {record.generation}" if record.generation > 1 else ""
        return f"#{record.attempt}/{record.step}{generation}: {_of_intent(record)}"
    match record:
        case r.AttemptOpened(attempt=attempt, owner=owner):
            return f"attempt {attempt} opened by {owner}"
        case r.AttemptFenced(attempt=attempt):
            return f"attempt {attempt} fenced, its owner was dead"
        case r.AttemptClosed(attempt=attempt, end=end, error=error):
            return f"attempt {attempt} {end}{_error(error)}"
        case r.CancelRequested(attempt=attempt, by=by, why=why):
            return f"attempt {attempt} asked to stop, by {by}: {why}"
        case r.ApplicationEvent(name=name):
            return f"event {name}"


def _of_intent(record: r.IntentRecord) -> str:  # noqa: PLR0911 - one for each kind of record
    match record:
        case r.Pending(tool=tool, declaration=declaration, request_id=request_id):
            return f"{tool}, {declaration.kind}, request {request_id}"
        case r.Dispatched(dispatch_no=number):
            return f"dispatch {number}"
        case r.Committed(outcome=outcome, dispatch_no=number, error=error, value_missing=missing):
            without = f", without its value: {missing}" if missing else ""
            return f"dispatch {number} {outcome}{_error(error)}{without}"
        case r.CallEnded(dispatch_no=number, error=error):
            return f"dispatch {number} ended, unknown how{_error(error)}"
        case r.Suspended(dispatch_no=number, reason=reason):
            return f"dispatch {number} suspended before its effect: {reason}"
        case r.ProbeAnswered(answer=answer, error=error):
            return f"the probe answered {answer}{_error(error)}"
        case r.Settled(settlement=settlement, by=by, why=why):
            return f"{settlement} by {by}: {why}"
        case r.Classified(last_state=state, classification=classification, resolution=resolution):
            return f"was {state}: {classification}, to do: {resolution}"
        case r.Renewed(by=by, why=why):
            return f"to happen once more, by {by}: {why}"
        case r.Supplied(by=by, why=why):
            return f"value supplied by {by}: {why}"


def _error(error: r.ErrorText | None) -> str:
    return f" ({error.type}: {error.text})" if error else ""
