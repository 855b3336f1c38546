"""Groups from which this worker has gone over to others, until all their members have said goodbye in them."""

from __future__ import annotations

import threading

from heterotrain.groups.generation import Collective, Generation


class RetiredGroups:
    """Releases them beside training: to close connections takes gloo several turns of its threads, which wait for a
    processor meanwhile."""

    def __init__(self) -> None:
        self._kept: list[tuple[Generation, Collective]] = []
        self._releasing: list[threading.Thread] = []

    def add(self, generation: Generation, farewell: Collective) -> None:
        """Keep these groups until the `farewell` has arrived everywhere."""
        self._kept.append((generation, farewell))

    def release_ended(self) -> None:
        """Begin to release those in which all have said goodbye."""
        ended = [generation for generation, farewell in self._kept if farewell.has_ended]
        self._kept = [each for each in self._kept if each[0] not in ended]
        self._releasing = [thread for thread in self._releasing if thread.is_alive()]
        for generation in ended:
            # The end of the interpreter waits for it: a thread of gloo's at work then would take the process down.
            thread = threading.Thread(target=generation.leave, name="heterotrain-release", daemon=False)
            try:
                thread.start()
            except RuntimeError:  # this worker may have no more threads
                generation.leave()
            else:
                self._releasing.append(thread)

    def release_all(self) -> None:
        """Release all of them, and wait until that is done. Whoever has not said goodbye finds its groups broken."""
        kept, self._kept = self._kept, []
        for generation, farewell in kept:
            if not farewell.has_ended:
                generation.break_up("this worker does not need them any more")
            generation.leave()
        for thread in self._releasing:
            thread.join()
        self._releasing = []
