package door

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"
)

// askPath is the prefix of the edge's own requests. [Internal] knows them by the missing [edgeHeader],
// which the door adds to all requests of clients.
const askPath = "/cluster/"

// termHeader has the term of the leader that an edge's own request is for.
const termHeader = "Fleetd-Term"

const (
	maxAnswer = 4 << 20 // bytes of the answer to a question
	maxAsked  = 3       // cores that may receive a question with Repeat
)

var errLongAnswer = errors.New("the answer is too long")

// A Question is a request of the edge to the leader.
type Question struct {
	Name string // the path at [InternalOptions.Own]
	Body []byte // JSON
	// Repeat allows to send it again after a leader may have received it, since it changes nothing the
	// second time.
	Repeat  bool
	HoldFor time.Duration // how long it waits while no core leads. 0: until the context ends
}

// Ask sends a request of the edge itself to the leader, and returns the status and the body of its
// answer. While no core leads it waits.
//
// A question without Repeat is sent to a second core only if it is certain that the first one has not
// handled it. The error is a [fleet.Error]: outcome_unknown if a core may have handled the question,
// otherwise no_leader or another code that says why none did.
func (d *Door) Ask(ctx context.Context, q Question) (status int, answer []byte, err error) {
	p := &passage{door: d, kind: Own}
	p.trace.GotConn = p.gotConn
	p.place.cost, p.place.rank = 512+len(q.Body), questions
	defer d.gate.leave(&p.place)
	p.to = d.gate.now()
	for first := true; ; first = false {
		if p.to == nil || !first {
			if err := p.waitAsking(ctx, cmp.Or(q.HoldFor, forever), !first); err != nil {
				return 0, nil, d.unasked(err)
			}
		}
		before := p.sends
		status, answer, err = p.ask(ctx, q)
		p.countSend()
		switch {
		case err == nil:
			d.gate.reached(&p.place, p.to)
			d.counts[Own].passed.Add(1)
			return status, answer, nil
		case errors.Is(err, errNotHandled):
			p.sends = before
			d.gate.missed(&p.place, p.to)
		case p.sends == before:
			d.gate.missed(&p.place, p.to)
			d.log.Debug("core not reached", "addr", p.to.Addr, "err", err)
		case q.Repeat && p.sends < maxAsked && !errors.Is(err, errLongAnswer):
			d.gate.leave(&p.place)
		default:
			d.log.Warn("outcome of a request unknown", "path", askPath+q.Name, "addr", p.to.Addr, "err", err)
			return 0, nil, d.unasked(errUnknown)
		}
		if ctx.Err() != nil {
			return 0, nil, d.unasked(errNoLeader)
		}
	}
}

// unasked returns the error of a question that has no answer.
func (d *Door) unasked(err error) error {
	if errors.Is(err, errUnknown) {
		d.counts[Own].unknown.Add(1)
	} else {
		d.counts[Own].refused.Add(1)
	}
	if answer, ok := refusalOf(err); ok {
		return answer.Error
	}
	return refusedNoLeader
}

const forever = 24 * time.Hour

// waitAsking waits for the leader.
func (p *passage) waitAsking(ctx context.Context, holdFor time.Duration, again bool) (err error) {
	d := p.door
	if again {
		d.counts[Own].retried.Add(1)
	}
	d.counts[Own].held.Add(1)
	defer d.counts[Own].held.Add(-1)
	p.to, err = d.gate.wait(ctx, &p.place, holdFor, again)
	return err
}

// ask sends the question to p.to.
func (p *passage) ask(ctx context.Context, q Question) (status int, answer []byte, err error) {
	ctx, cancel := context.WithCancel(httptrace.WithClientTrace(ctx, &p.trace))
	defer cancel()
	if q.Repeat { // a leader that was replaced may be frozen
		stop, to := make(chan struct{}), p.to
		defer close(stop)
		go func() {
			select {
			case <-to.replaced:
				cancel()
			case <-stop:
			}
		}()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://core"+askPath+q.Name, bytes.NewReader(q.Body))
	if err != nil {
		return 0, nil, err
	}
	r.GetBody = nil // net/http repeats nothing
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(termHeader, strconv.FormatInt(p.to.Term, 10))
	resp, err := p.to.requests.RoundTrip(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if resp.Header.Get(notHandledHeader) != "" {
		return 0, nil, errNotHandled
	}
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(answer) > maxAnswer {
		err = errLongAnswer
	}
	return resp.StatusCode, answer, err
}

// serveOwn serves a request of the edge itself.
func (i *Internal) serveOwn(w http.ResponseWriter, r *http.Request, edge string) {
	name, ok := strings.CutPrefix(r.URL.Path, askPath)
	term, err := strconv.ParseInt(r.Header.Get(termHeader), 10, 64)
	serve, tunnels := i.o.Tunnels[name]
	tunnels = tunnels && r.Header.Get("Upgrade") == tunnelProtocol
	if !ok || err != nil || i.o.Own == nil && !tunnels {
		http.Error(w, "the header "+edgeHeader+" is missing", http.StatusBadRequest)
		return
	}
	if !i.handles(w, term) {
		return
	}
	if tunnels {
		i.serveTunnel(w, edge, serve)
		return
	}
	again := r.WithContext(&edgeContext{r.Context(), edge, nil, false})
	u := *r.URL
	u.Path = "/" + name
	again.URL = &u
	i.o.Own.ServeHTTP(w, again)
}

// handles reports whether this core leads in the term, or a later one. Otherwise it answers that the
// request was not handled.
func (i *Internal) handles(w http.ResponseWriter, of int64) bool {
	if term := i.o.Term(); term != 0 && term >= of && !i.stopping.Load() {
		return true
	}
	w.Header().Set(notHandledHeader, "1")
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusServiceUnavailable)
	return false
}
