"""OpenAI's streamed completions, of token ids, from OpenVINO's continuous batching.

    python ovserver.py MODEL.gguf PORT KV_BLOCKS MOST_REQUESTS THREADS

Run by the environment that has OpenVINO; nothing else is imported. One thread steps the pipeline,
the event loop serves HTTP. A piece for each token; its text is a placeholder, so that no time goes
into detokenizing.
"""

import asyncio
import json
import queue
import sys
import threading
from typing import Any

import numpy as np
import openvino
import openvino_genai

PIECE = b'data: {"choices":[{"index":0,"text":" t","finish_reason":null}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Job:
    """A request under way."""

    def __init__(self, prompt: list[int], tokens: int) -> None:
        self.prompt, self.tokens = prompt, tokens
        self.arrived: asyncio.Queue[int] = asyncio.Queue()
        """Numbers of tokens that have come; 0 at the end."""
        self.left = False
        self.handle: Any = None


class Engine(threading.Thread):
    """Steps the pipeline while there is something to do."""

    def __init__(self, pipeline: Any, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        self.asked: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._pipeline, self._loop = pipeline, loop
        self._jobs: list[Job] = []
        self._count = 0

    def run(self) -> None:
        while True:
            while not self._jobs or not self.asked.empty():
                self._add(self.asked.get())
            self._pipeline.step()
            news = [(job, self._read(job)) for job in self._jobs]
            self._jobs = [job for job in self._jobs if not self._is_over(job)]
            over = {job for job, _ in news} - {*self._jobs}
            self._loop.call_soon_threadsafe(self._tell, news, over)

    def _add(self, job: Job) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = job.tokens, True, False
        ids = openvino.Tensor(np.array([job.prompt], np.int64))
        job.handle = self._pipeline.add_request(self._count, ids, config)
        self._count += 1
        self._jobs.append(job)

    def _read(self, job: Job) -> int:
        """How many tokens have come. A handle that was told of its end is read to it."""
        if job.left:
            job.handle.cancel()
            return 0
        came = 0
        while job.handle.can_read():
            came += sum(len(output.generated_ids) for output in job.handle.read().values())
        return came

    def _is_over(self, job: Job) -> bool:
        return job.left or job.handle.get_status() != openvino_genai.GenerationStatus.RUNNING

    def _tell(self, news: list[tuple[Job, int]], over: set[Job]) -> None:
        for job, came in news:
            if came:
                job.arrived.put_nowait(came)
            if job in over:
                job.arrived.put_nowait(0)


async def answer(
    engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """All requests of one connection, one after another."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = json.loads(await reader.readexactly(length) or b"{}")
            if head.startswith(b"GET"):
                data = b'{"data":[{"id":"openvino"}]}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
                continue
            job = Job(body["prompt"], body["max_tokens"])
            engine.asked.put(job)
            try:
                await stream(job, writer)
            finally:
                job.left = True
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def stream(job: Job, writer: asyncio.StreamWriter) -> None:
    """The tokens of a job, as events."""
    writer.write(HEAD)
    total = 0
    while came := await job.arrived.get():
        total += came
        writer.write(chunk(PIECE * came))
        await writer.drain()
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
    usage = {"prompt_tokens": len(job.prompt), "completion_tokens": total}
    events = [last, {"choices": [], "usage": usage}]
    data = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    writer.write(chunk(data + b"data: [DONE]\n\n") + b"0\r\n\r\n")
    await writer.drain()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def main() -> None:
    model, port, blocks, requests, threads = sys.argv[1], *map(int, sys.argv[2:6])
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks, scheduler.max_num_seqs = blocks, requests
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
    )
    engine = Engine(pipeline, asyncio.get_running_loop())
    engine.start()
    server = await asyncio.start_server(
        lambda reader, writer: answer(engine, reader, writer), "127.0.0.1", port, backlog=256
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
