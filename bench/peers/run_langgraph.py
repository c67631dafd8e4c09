"""LangGraph with its SQLite checkpointer and durability="sync": one node of a graph, again and again."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.peers.runner import Peer, Ready, Times, main


class State(TypedDict):
    """The order that is charged, and how many are left."""

    left: int
    receipt: str


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Peer]:
    """A thread of the graph for each worker. A step lasts from one entry into the node to the next."""
    del url
    entered: dict[str, list[int]] = {}

    def charge(state: State, config: RunnableConfig) -> State:
        entered[config["configurable"]["thread_id"]].append(time.perf_counter_ns())
        return {"left": state["left"] - 1, "receipt": f"receipt-{state['left']}"}

    graph = StateGraph(State)
    graph.add_node("charge", charge)
    graph.add_edge(START, "charge")
    graph.add_conditional_edges("charge", lambda state: "charge" if state["left"] > 0 else END)
    with SqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        saver.setup()
        app = graph.compile(checkpointer=saver)

        def effects(name: str, count: int, ready: Ready) -> Times:
            entered[name] = []
            config = {"configurable": {"thread_id": name}, "recursion_limit": count + 10}
            ready()
            app.invoke({"left": count, "receipt": ""}, config, durability="sync")
            times = [*entered.pop(name), time.perf_counter_ns()]
            return list(pairwise(times))

        versions = f"{version('langgraph')}, checkpoint-sqlite {version('langgraph-checkpoint-sqlite')}"
        yield Peer(f"{versions} (SQLite {sqlite3.sqlite_version})", effects)


if __name__ == "__main__":
    main(opened)
