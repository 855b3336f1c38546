// Command pause holds a pod's namespaces open until it is told to stop, and reaps what the pod orphans.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	events := make(chan os.Signal, 16)
	signal.Notify(events, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for event := range events {
		if event != syscall.SIGCHLD {
			return
		}
		for pid := 1; pid > 0; {
			pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
