package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// clusterTool is called by the load. Each device gets one call at most, so that one that was made twice
// is seen.
const clusterTool = "self.audio_speaker.set_volume"

// A clusterLoad makes calls through REST, each to another device, at a rate. Up to width calls are
// under way at once.
type clusterLoad struct {
	rig    *clusterRig
	ids    []string
	client *http.Client
	next   atomic.Int64 // index of the next device
	skip   map[int]bool // edges that are not asked
	stop   chan struct{}
	done   sync.WaitGroup

	mu      sync.Mutex
	results []callResult
}

// A callResult is what a caller was given for a device, after it followed Retry-After.
type callResult struct {
	device   int
	id       string // of the call
	outcome  string // succeeded, unknown, another state, or an HTTP error
	began    time.Time
	ended    time.Time
	refusals int // answers 503 and 429 before it
}

const succeeded, unknown = "succeeded", "unknown"

// startClusterLoad calls the devices in order. Callers use the edges in turn, except those of skip.
func startClusterLoad(r *clusterRig, ids []string, from int, rate float64, width int, skip map[int]bool) *clusterLoad {
	l := &clusterLoad{rig: r, ids: ids, skip: skip, stop: make(chan struct{}),
		client: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: width}}}
	l.next.Store(int64(from))
	due := make(chan struct{})
	go func() { // the pace
		defer close(due)
		begun := time.Now()
		for n := 0; ; n++ {
			if wait := time.Until(begun.Add(time.Duration(float64(n) / rate * float64(time.Second)))); wait > 0 {
				time.Sleep(wait)
			}
			select {
			case due <- struct{}{}:
			case <-l.stop:
				return
			}
		}
	}()
	for worker := range width {
		l.done.Go(func() {
			for range due {
				if i := int(l.next.Add(1) - 1); i < len(l.ids) {
					l.call(worker, i)
				}
			}
		})
	}
	return l
}

func (l *clusterLoad) call(worker, device int) {
	result := callResult{device: device, began: time.Now()}
	for attempt := worker; ; attempt++ {
		edge := attempt % len(l.rig.edges)
		if l.skip[edge] {
			continue
		}
		again := time.Duration(0)
		result.outcome, result.id, again = l.post(l.rig.edges[edge], device)
		if again == 0 || time.Since(result.began) > time.Minute {
			break
		}
		result.refusals++
		time.Sleep(again)
	}
	result.ended = time.Now()
	l.mu.Lock()
	l.results = append(l.results, result)
	l.mu.Unlock()
}

// post makes a call through an edge. again is set if nothing was done, and it may be repeated then.
func (l *clusterLoad) post(edge *clusterNode, device int) (outcome, id string, again time.Duration) {
	url := "http://" + edge.http + "/api/v1/devices/" + strings.ReplaceAll(l.ids[device], ":", "") + "/calls"
	req, err := http.NewRequest(http.MethodPost, url,
		strings.NewReader(`{"tool":"`+clusterTool+`","arguments":{"volume":`+strconv.Itoa(device%100)+`}}`))
	if err != nil {
		return err.Error(), "", 0
	}
	req.Header.Set("Authorization", "Bearer "+l.rig.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.client.Do(req)
	if err != nil {
		return "connection lost", "", 0 // of an edge that was killed
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "connection lost", "", 0
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && resp.StatusCode >= 400 {
		return fmt.Sprintf("refused with %d", resp.StatusCode), "", max(time.Second, time.Duration(seconds)*time.Second)
	}
	var answer struct{ ID, State, Code string }
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&answer); err != nil {
		return fmt.Sprintf("status %d, no JSON", resp.StatusCode), "", 0
	}
	switch {
	case answer.Code == "outcome_unknown":
		return unknown, "", 0
	case answer.State == "":
		return fmt.Sprintf("status %d %s", resp.StatusCode, answer.Code), "", 0
	}
	return answer.State, answer.ID, 0
}

// end ends the load and waits for the calls under way.
func (l *clusterLoad) end() {
	close(l.stop)
	l.done.Wait()
	l.client.CloseIdleConnections()
}

// finished returns the calls that ended since the time, in the order of their end.
func (l *clusterLoad) finished(since time.Time) []callResult {
	l.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(l.results), func(c callResult) bool { return c.ended.Before(since) })
	l.mu.Unlock()
	slices.SortFunc(list, func(a, b callResult) int { return a.ended.Compare(b.ended) })
	return list
}

// firstSince returns when the first call that began after the time succeeded; zero if none has.
func (l *clusterLoad) firstSince(since time.Time) time.Time {
	for _, c := range l.finished(since) {
		if c.began.After(since) && c.outcome == succeeded {
			return c.ended
		}
	}
	return time.Time{}
}

// rateSince returns successful calls a second since the time.
func (l *clusterLoad) rateSince(since time.Time) float64 {
	n := 0
	for _, c := range l.finished(since) {
		if c.outcome == succeeded {
			n++
		}
	}
	return float64(n) / time.Since(since).Seconds()
}
