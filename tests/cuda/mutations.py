"""Faults put into the driver, and into how the kernel uses it, on purpose, each with a test that
finds it. `test_mutations.py` tries them; `make cuda-mutations`.

Files are in drivers/cuda, tests beside this one; others are named from there.
"""

from tokenix.tests.cuda_kernels.mutations import Mutation

SWAP, DEVICE, MODEL = "test_swap.py", "test_device.py", "test_model.py"
AHEAD = "test_ahead.py"
DRIVER = "test_driver.py"
INTIME = "test_intime.py"
LAYERS = "test_layers.py"
COVERED = "../sim/test_covered.py"
RANKS = "../cuda_ranks/test_device.py"

MUTATIONS = [
    Mutation(
        "swap out does not wait for the fence",
        "swap.py", "        self._computed.hold(self._out)\n", "",
        f"{SWAP}::test_a_copy_out_waits_for_what_writes_the_frame",
    ),
    Mutation(
        "swap in does not wait for the fence",
        "swap.py", "        self._computed.hold(self._in)\n", "",
        f"{SWAP}::test_a_copy_in_waits_for_what_reads_the_frame",
    ),
    Mutation(
        "a slot is read before its copy is done",
        "swap.py", "                self._settle(event)\n", "",
        f"{SWAP}::test_a_slot_is_read_only_after_its_copy",
    ),
    Mutation(
        "a load is told before it is done",
        "swap.py", "            self._driver.sync(stream)\n", "            pass\n",
        f"{SWAP}::test_a_slot_is_read_only_after_its_copy",
    ),
    Mutation(
        "pages come in on the stream of those that leave",
        "swap.py", "run.pages * size, self._in)", "run.pages * size, self._out)",
        f"{SWAP}::test_neither_way_waits_for_the_other",
    ),
    Mutation(
        "copies wait for the pass that runs",
        "device.py", "        self._last = Pass(", "        self._computed.rise()\n"
        "        self._last = Pass(", f"{SWAP}::test_copies_run_beside_a_pass",
    ),
    Mutation(
        "a slot of another generation is served",
        "swap.py", "        if isinstance(expected, str):\n            return expected\n", "",
        f"{SWAP}::test_a_slot_without_the_generation_is_refused",
    ),
    Mutation(
        "a slot of another checksum is served",
        "swap.py", "if expected != checksum", "if expected is None",
        f"{SWAP}::test_a_corrupt_slot_is_refused_alone",
    ),
    Mutation(
        "frames are merged into a run whose slots are no neighbours",
        "swap.py", "== (last.pfn + last.pages, last.slot + last.pages)",
        "== (last.pfn + last.pages, slot)", f"{SWAP}::test_neighbours_are_one_copy",
    ),
    Mutation(
        "the copy of a frame does not raise the fence",
        "device.py", "stride_bytes, self._stream)\n        self._computed.rise()\n",
        "stride_bytes, self._stream)\n",
        f"{SWAP}::test_a_copy_out_waits_for_what_writes_the_frame",
    ),
    Mutation(
        "poison does not raise the fence",
        "device.py", "words, self._stream)\n        self._computed.rise()\n",
        "words, self._stream)\n", f"{SWAP}::test_a_copy_waits_for_the_poison_before_it",
    ),
    Mutation(
        "changes of block tables are not sent",
        "devicetables.py",
        "self._driver.copy_in(to, inputs.spare_address + 4 * used, 4 * count, stream)", "pass",
        f"{DEVICE}::test_a_table_that_changes_is_followed",
    ),
    Mutation(
        "graphs keep the address of tables that moved",
        "device.py", "                self._step.forget_graphs()\n", "",
        f"{DEVICE}::test_more_processes_than_the_tables_had_room_for",
    ),
    Mutation(
        "inputs are written again before they were copied",
        "buffers.py", "        self._driver.sync_event(self._uploaded)\n", "        pass\n",
        f"{AHEAD}::test_tokens_stay_on_the_device",
    ),
    Mutation(
        "changes of tables are written again before they were copied",
        "buffers.py", "        self._driver.sync_event(self._spared)\n", "        pass\n",
        f"{AHEAD}::test_tables_that_change_in_every_pass_are_followed",
    ),
    Mutation(
        "a pass waits for the one before it when tables change",
        "buffers.py", "record(self._spared, stream)", "record(self._uploaded, stream)",
        f"{AHEAD}::test_a_pass_is_queued_while_the_one_before_runs",
    ),
    Mutation(
        "rows of logits are read before they were copied",
        "drawing.py", "        self._driver.sync_event(self._done)\n        logits",
        "        logits", f"{MODEL}::test_a_graph_computes_what_it_was_captured_of",
    ),
    Mutation(
        "a row that goes on runs a token of the host",
        "layers.py", "torch.where(sources < 0, inputs[\"tokens\"][:rows], known)",
        "inputs[\"tokens\"][:rows].clamp(min=0)", f"{AHEAD}::test_tokens_stay_on_the_device",
    ),
    Mutation(
        "a row that goes on runs the token of another one",
        "step.py", "return before[row.pid] if row.tokens[0] < 0 else -1",
        "return 0 if row.tokens[0] < 0 else -1", f"{AHEAD}::test_tokens_stay_on_the_device",
    ),
    Mutation(
        "tokens of two passes are told through one buffer",
        "drawing.py", "        self._turn = 1 - turn\n", "",
        f"{AHEAD}::test_tokens_stay_on_the_device",
    ),
    Mutation(
        "a pass is queued over logits that the host must see",
        "device.py", "            before.done()\n", "            pass\n",
        f"{AHEAD}::test_what_is_drawn_here_is_drawn_before_the_next_pass",
    ),
    Mutation(
        "tokens are told before they are drawn",
        "drawing.py", "        self._driver.sync_event(drawn)\n", "",
        f"{AHEAD}::test_tokens_stay_on_the_device",
    ),
    Mutation(
        "other ranks go on with what their own device has in place of drawn tokens",
        "layers.py", "if self._peers is not None:\n            self._dense.run", "if False:\n"
        "            self._dense.run", f"{RANKS}::test_tokens_stay_on_all_devices",
    ),
    Mutation(
        "other ranks take their own tokens for known",
        "device.py", " or self._rank.shard.index > 0", "",
        f"{RANKS}::test_tokens_stay_on_all_devices",
    ),
    Mutation(
        "a pass is told before other ranks have ended it",
        "passes.py", "            self._others()\n", "",
        f"{RANKS}::test_a_pass_has_ended_when_it_has_on_all_ranks",
    ),
    Mutation(
        "padding of a bucket is a row like others",
        "step.py", '("positions", NOTHING)', '("positions", 0)',
        f"{MODEL}::test_a_bucket_pads_with_rows_that_do_nothing",
    ),
    Mutation(
        "a graph has too few splits",
        "step.py", "_power(-(-longest // SPLIT_TOKENS))", "1",
        f"{MODEL}::test_a_context_of_several_splits",
    ),
    Mutation(
        "rows that attend in turns have the slots of the first",
        "layers.py", 'inputs.address("slots") + 4 * first', 'inputs.address("slots")',
        f"{MODEL}::test_rows_that_attend_in_turns_change_nothing",
    ),
    Mutation(
        "an upload is not waited for",
        "driver.py", '        self._check("cuStreamSynchronize", 0)\n', "",
        f"{DRIVER}::test_an_upload_is_there_when_it_returns",
    ),
    Mutation(
        "a lost GPU counts as a failure like others",
        "driver.py", "self.lost = code in LOST", "self.lost = False",
        f"{DEVICE}::test_a_lost_gpu_fails_all_commands_and_hangs_none",
    ),
    Mutation(
        "a pass beside a load does not wait for its layers",
        "layers.py", "                beside.hold(self._launcher.stream, i)\n",
        "                pass\n", f"{LAYERS}::test_a_pass_reads_what_the_load_brings",
    ),
    Mutation(
        "a layer waits for pages after it has written to them",
        "layers.py",
        "            if beside is not None:\n"
        "                beside.hold(self._launcher.stream, i)\n"
        '            blocks["append"].set(rows=rows)\n'
        '            self._launcher.launch(blocks["append"], rows)\n',
        '            blocks["append"].set(rows=rows)\n'
        '            self._launcher.launch(blocks["append"], rows)\n'
        "            if beside is not None:\n"
        "                beside.hold(self._launcher.stream, i)\n",
        f"{LAYERS}::test_a_pass_reads_what_the_load_brings",
    ),
    Mutation(
        "a pass waits for all layers before its first",
        "layers.py", "beside.hold(self._launcher.stream, i)",
        "beside.hold_all(self._launcher.stream)",
        f"{LAYERS}::test_each_layer_waits_for_its_part_of_the_pages_and_for_no_more",
    ),
    Mutation(
        "a layer waits for the part before its own",
        "arrival.py", "self._driver.wait(stream, self._events[part])",
        "self._driver.wait(stream, self._events[max(0, part - 1)])",
        f"{LAYERS}::test_each_layer_waits_for_its_part_of_the_pages_and_for_no_more",
    ),
    Mutation(
        "a layer waits for the part behind its own",
        "arrival.py", "            self._wait(\"copied\", part)\n            if not self._over:\n"
        "                self._driver.wait(stream, self._events[part])",
        "            part = min(part + 1, len(self.parts) - 1)\n"
        "            self._wait(\"copied\", part)\n            if not self._over:\n"
        "                self._driver.wait(stream, self._events[part])",
        f"{LAYERS}::test_each_layer_waits_for_its_part_of_the_pages_and_for_no_more",
    ),
    Mutation(
        "the event of a part is before its copies",
        "swap.py", "                    self._copy_part(runs, part)\n"
        "                    arrival.mark(self._mark(self._in))\n",
        "                    arrival.mark(self._mark(self._in))\n"
        "                    self._copy_part(runs, part)\n",
        f"{LAYERS}::test_each_layer_waits_for_its_part_of_the_pages_and_for_no_more",
    ),
    Mutation(
        "a graph runs before the pages that it reads have come",
        "step.py", "                beside.hold_all(self._stream)\n", "                pass\n",
        f"{LAYERS}::test_a_pass_reads_what_the_load_brings",
    ),
    Mutation(
        "a part that nobody has queued is taken for one that has come",
        "arrival.py", "            self._wait(\"copied\", part)\n            if not self._over:\n",
        "            if not self._over and len(self._events) > part:\n",
        f"{LAYERS}::test_a_part_that_was_not_queued_yet_is_waited_for",
    ),
    Mutation(
        "a load by layers does not wait for the fence",
        "swap.py", "        self._computed.hold(self._in)\n        try:\n", "        try:\n",
        f"{LAYERS}::test_the_copies_wait_for_what_was_queued_before_them",
    ),
    Mutation(
        "a pass is told before the load beside it is verified",
        "arrival.py", "            self._wait(\"verified\")\n", "",
        f"{LAYERS}::test_tokens_are_told_after_the_load_is_verified",
    ),
    Mutation(
        "tokens count that were drawn with pages that are none",
        "passes.py", "spoiled=self._spoiled()", "spoiled=self._spoiled() and ()",
        f"{LAYERS}::test_what_was_computed_with_pages_that_are_none_is_not_told",
    ),
    Mutation(
        "slots of a load by layers are not verified",
        "swap.py", "                for i, checksum in zip(good, sums, strict=True):\n"
        "                    wrong[i] = self._differs(pages[i], checksum)\n        finally:",
        "                list(sums)\n        finally:",
        f"{LAYERS}::test_what_was_computed_with_pages_that_are_none_is_not_told",
    ),
    Mutation(
        "the device covers no loads",
        "device.py", "covers_loads=self._rank.shard.count == 1", "covers_loads=False",
        f"{INTIME}::test_a_turn_is_computed_while_those_before_it_are_loaded",
    ),
    Mutation(
        "a row counts although the load beside it has not ended",
        "../../kernel/core.py", " or self.memory.copies.beside(process.pid) is not None", "",
        f"{COVERED}::test_a_page_that_does_not_come_voids_the_pass",
    ),
    Mutation(
        "who has computed beside a load that has not ended does not wait for it",
        "../../kernel/core.py", "            if self.memory.await_load(process):\n"
        "                self.move(process, State.SWAPPING_IN)\n", "",
        f"{COVERED}::test_a_page_that_does_not_come_voids_the_pass",
    ),
    Mutation(
        "whoever has a token to compute makes others wait for its pages",
        "../../swap/restore.py",
        "return self.load_s(host_pages, 0) <= self.compute_s(tokens)", "return True",
        f"{COVERED}::test_who_has_little_to_compute_waits_for_its_pages",
    ),
    Mutation(
        "loads queue up behind pages that leave",
        "../queued.py", 'CommandQueue("tokenix-swap-in", self._run_copy)', "self._out",
        f"{SWAP}::test_a_load_is_verified_while_pages_leave",
    ),
    Mutation(
        "pages are asked for when they are due, not ahead",
        "../../sched/resume.py", "draft.in_queue_s + world.restore_s(task)\n", "0.0\n",
        f"{INTIME}::test_pages_are_back_two_steps_before_the_reader_needs_the_next_token",
    ),
    Mutation(
        "pages are back when the next token is due, without a reserve",
        "../../sched/resume.py", " - way_s - world.rates.step_s - world.tunables.margin_s",
        " - way_s",
        f"{INTIME}::test_pages_are_back_two_steps_before_the_reader_needs_the_next_token",
    ),
    Mutation(
        "the planner has a link of its own",
        "../../kernel/copies.py", "Link(info.copy_in_s_per_page,", "Link(4e-5,",
        f"{INTIME}::test_pages_are_back_two_steps_before_the_reader_needs_the_next_token",
    ),
    Mutation(
        "the device tells one rate for both ways",
        "device.py", "=found.copy_in_s_per_page", "=found.copy_out_s_per_page",
        f"{INTIME}::test_the_planner_has_the_rates_measured_at_boot",
    ),
    Mutation(
        "pages are cleaned beside copies",
        "../../kernel/memory.py",
        "if transfers.count_pages(Lane.OUT) or transfers.count_pages(Lane.IN):", "if False:",
        f"{INTIME}::test_pages_are_cleaned_beside_passes_and_never_beside_copies",
    ),
    Mutation(
        "no page is cleaned while a pass runs",
        "../../kernel/core.py", "write_behind(swaps,", "write_behind(swaps and not self.flights,",
        f"{INTIME}::test_pages_are_cleaned_beside_passes_and_never_beside_copies",
    ),
    Mutation(
        "no page is cleaned before it leaves",
        "../../kernel/core.py", "write_behind(swaps,", "write_behind(False,",
        f"{INTIME}::test_pages_are_back_two_steps_before_the_reader_needs_the_next_token",
    ),
    Mutation(
        "one pass at a time",
        "device.py", "            depth=2,\n", "            depth=1,\n",
        f"{INTIME}::test_the_next_pass_is_there_before_the_one_before_has_ended",
    ),
    Mutation(
        "nobody looks at what calls of events say",
        "driver.py", "        if int(result):", '        if int(result) and "Event" not in call:',
        f"{DEVICE}::test_whichever_call_fails_its_command_fails_and_no_other",
    ),
    Mutation(
        "what is left of a failed pass runs later",
        "device.py", "            self._driver.sync(self._stream)\n            raise\n",
        "            raise\n", f"{DEVICE}::test_nothing_of_a_failed_pass_runs_later",
    ),
    Mutation(
        "tables are given back while a pass has to be told of them",
        "devicetables.py", "            self._driver.sync(stream)\n            self._driver.free(",
        "            self._driver.free(", f"{AHEAD}::test_tables_move_behind_the_pass_before",
    ),
    Mutation(
        "room for changes of tables is used again before they were copied",
        "devicetables.py", "                self._driver.sync(stream)\n                used = 0\n",
        "                used = 0\n",
        f"{AHEAD}::test_more_changes_of_tables_than_there_is_room_for",
    ),
    Mutation(
        "inputs of a prompt are written before those of the pass before were copied",
        "step.py", "            self._inputs.settle()\n", "",
        f"{AHEAD}::test_tables_that_change_in_every_pass_are_followed",
    ),
    Mutation(
        "another rank's pages leave without the fence",
        "ranks/lanes.py", "        self._computed.hold(self._out)\n", "",
        f"{SWAP}::test_a_copy_out_waits_for_what_writes_the_frame",
    ),
    Mutation(
        "another rank's pages come without the fence",
        "ranks/lanes.py", "        self._computed.hold(self._in)\n", "",
        f"{SWAP}::test_a_copy_in_waits_for_what_reads_the_frame",
    ),
    Mutation(
        "a slot is read before other ranks have written their parts",
        "ranks/lanes.py", "        asked.wait()\n", "",
        f"{RANKS}::test_pages_have_moved_when_they_have_on_all_ranks",
    ),
    Mutation(
        "a load is told before other ranks have their parts",
        "ranks/lanes.py",
        "                each.settle()\n        for each in asked:\n            each.wait()\n",
        "                pass\n",
        f"{RANKS}::test_pages_have_moved_when_they_have_on_all_ranks",
    ),
    Mutation(
        "a frame's copy is told before other ranks have queued theirs",
        "ranks/device.py", "        super()._copy_frame(command)\n        asked.wait()\n",
        "        super()._copy_frame(command)\n",
        f"{RANKS}::test_a_frame_is_copied_when_it_is_on_all_ranks",
    ),
]  # fmt: skip
