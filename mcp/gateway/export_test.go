package gateway

import "net/http"

// ReadUsual reads a body as that of a usual call.
func ReadUsual(body string) bool {
	var u usualCall
	r := &http.Request{Header: http.Header{"Content-Type": {"application/json"},
		"Accept": {"application/json, text/event-stream"}}}
	if !u.read(r, []byte(body)) {
		return false
	}
	_, ok := readCallIn(u.arguments)
	return ok
}

// Sessions is how many sessions are open.
func (g *Gateway) Sessions() int {
	g.sessions.mu.Lock()
	defer g.sessions.mu.Unlock()
	return len(g.sessions.slots)
}
