// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

package main

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Upper bounds of the duration buckets, in seconds.
var bounds = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}

// counters counts the answers. Each status code has a counter of 0 from the start, since Prometheus does not count the increase
// of a counter before its first scrape.
type counters struct {
	sync.Mutex
	codes   map[int]int
	buckets []int
	count   int
	seconds float64
}

func newCounters() *counters {
	return &counters{codes: map[int]int{http.StatusOK: 0, http.StatusInternalServerError: 0}, buckets: make([]int, len(bounds))}
}

func (metrics *counters) add(code int, took time.Duration) {
	metrics.Lock()
	defer metrics.Unlock()
	metrics.codes[code]++
	metrics.count++
	metrics.seconds += took.Seconds()
	for index, bound := range bounds {
		if took.Seconds() <= bound {
			metrics.buckets[index]++
		}
	}
}

func (metrics *counters) ServeHTTP(response http.ResponseWriter, _ *http.Request) {
	metrics.Lock()
	defer metrics.Unlock()
	response.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for code, count := range metrics.codes {
		fmt.Fprintf(response, "http_requests_total{code=\"%d\"} %d\n", code, count)
	}
	for index, bound := range bounds {
		fmt.Fprintf(response, "http_request_duration_seconds_bucket{le=\"%g\"} %d\n", bound, metrics.buckets[index])
	}
	fmt.Fprintf(response, "http_request_duration_seconds_bucket{le=\"+Inf\"} %d\n", metrics.count)
	fmt.Fprintf(response, "http_request_duration_seconds_sum %g\n", metrics.seconds)
	fmt.Fprintf(response, "http_request_duration_seconds_count %d\n", metrics.count)
}
