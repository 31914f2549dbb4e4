// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// The only program in the images of the real node: a web server that answers with its version. `web pause` is the pause
// container of a pod, and process 1 of the node.
//
// After SIGTERM, the server continues to serve for DRAIN_MS, because kube-proxy sends requests until it has observed the
// termination. Meanwhile the server asks clients to close persistent connections; then it completes the open requests and exits.
// With DRAIN_MS=0, it exits immediately.
//
// With LOG_MS, the server logs a line per interval; LOG_ERRORS is the percentage of lines that are errors.
//
// With DATA, the name of a file, each start appends a line with the version, and /data returns the file.
//
// /?cpu=2 uses 2 ms of processor time for the answer, so that an autoscaler has a load to measure.
//
// /metrics exports Prometheus metrics of the answers. ERRORS, such as 0.05, is the share of answers with status 500; SLOW_MS is
// the duration of each answer.
package main

import (
	"context"
	"fmt"
	"math/rand"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "pause" {
		pause()
		return
	}
	if err := serve(os.Getenv("VERSION")); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// milliseconds returns the duration in an environment variable; 0 if it is unset.
func milliseconds(name string) time.Duration {
	number, _ := strconv.Atoi(os.Getenv(name))
	return time.Duration(number) * time.Millisecond
}

func serve(version string) error {
	fmt.Println(version, "starting")
	if size, _ := strconv.Atoi(os.Getenv("MEMORY_MB")); size > 0 {
		allocate(size)
	}
	if after := milliseconds("CRASH_MS"); after > 0 {
		time.AfterFunc(after, func() {
			fmt.Println("FATAL: no connection to database db.example:5432")
			os.Exit(3)
		})
	}
	if interval := milliseconds("LOG_MS"); interval > 0 {
		go logLines(version, interval)
	}
	if err := recordStart(version); err != nil {
		return err
	}
	time.Sleep(milliseconds("START_MS"))

	var draining atomic.Bool
	server := &http.Server{Addr: ":8080", Handler: handler(version, &draining)}
	drained := make(chan struct{})
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	go func() {
		<-terminate
		grace := milliseconds("DRAIN_MS")
		if grace == 0 {
			os.Exit(0)
		}
		draining.Store(true)
		time.Sleep(grace)
		server.Shutdown(context.Background())
		close(drained)
	}()

	fmt.Println(version, "listening")
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	<-drained
	fmt.Println(version, "drained")
	return nil
}

func handler(version string, draining *atomic.Bool) http.Handler {
	mux, metrics, delay := http.NewServeMux(), newCounters(), milliseconds("SLOW_MS")
	errorShare, _ := strconv.ParseFloat(os.Getenv("ERRORS"), 64)
	mux.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		began, status := time.Now(), http.StatusOK
		query := request.URL.Query()
		delayMilliseconds, _ := strconv.Atoi(query.Get("ms"))
		time.Sleep(time.Duration(delayMilliseconds)*time.Millisecond + delay)
		cpuMilliseconds, _ := strconv.Atoi(query.Get("cpu"))
		compute(time.Duration(cpuMilliseconds) * time.Millisecond)
		if draining.Load() {
			response.Header().Set("Connection", "close")
		}
		if rand.Float64() < errorShare {
			status = http.StatusInternalServerError
		}
		response.WriteHeader(status)
		fmt.Fprint(response, version)
		metrics.add(status, time.Since(began))
	})
	mux.Handle("/metrics", metrics)
	mux.HandleFunc("/data", func(response http.ResponseWriter, request *http.Request) {
		http.ServeFile(response, request, os.Getenv("DATA"))
	})
	mux.HandleFunc("/ready", func(response http.ResponseWriter, _ *http.Request) {
		if os.Getenv("NEVER_READY") != "" {
			http.Error(response, "not ready", http.StatusServiceUnavailable)
		}
	})
	return mux
}

// compute uses an amount of processor time, however long that takes on a busy machine.
func compute(amount time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for end := processorTime() + amount; processorTime() < end; {
	}
}

// processorTime returns the processor time of the current thread.
func processorTime() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_THREAD, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func logLines(version string, interval time.Duration) {
	errorPercent, _ := strconv.Atoi(os.Getenv("LOG_ERRORS"))
	for number := 0; ; number++ {
		if number*errorPercent%100 < errorPercent {
			fmt.Println("\x1b[31mERROR\x1b[0m: no connection to database db.example:5432, password=s3cret")
		} else {
			fmt.Println(version, "has answered a request")
		}
		time.Sleep(interval)
	}
}

func recordStart(version string) error {
	name := os.Getenv("DATA")
	if name == "" {
		return nil
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprintln(file, version)
	return err
}

// allocate allocates memory and writes to each page, since the kernel counts only written pages.
func allocate(megabytes int) {
	memory := make([]byte, megabytes<<20)
	for page := 0; page < len(memory); page += 4096 {
		memory[page] = 1
	}
}

// pause waits for a signal to exit, and reaps orphaned processes.
func pause() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 && err != syscall.EINTR {
				break
			}
		}
	}
}
