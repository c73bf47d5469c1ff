package server

import (
	"errors"
	"fmt"
	"time"

	"fleetd/broker/cluster"
)

// setDrain starts or cancels a drain on behalf of the leader. An edge that is being stopped cannot be
// kept from it.
func (s *EdgeServer) setDrain(drain bool) {
	switch {
	case drain:
		s.edge.Drain()
	case !s.stopping.Load():
		s.edge.CancelDrain()
	}
}

// drainOf returns the progress of the drain; nil if none is under way.
func (s *EdgeServer) drainOf() *cluster.Draining {
	d, ok := s.edge.Draining()
	if !ok {
		return nil
	}
	return &cluster.Draining{Since: d.Since, Moved: d.Moved, Remaining: d.Remaining}
}

// drainNotice is how long an edge that is stopped waits at least, so that balancers notice that it is
// not ready, and send requests to another one.
const drainNotice = 3 * time.Second

// drainBeforeStop asks the devices to connect to another edge, and waits until they have left, or for
// Config.DrainTimeout.
func (s *EdgeServer) drainBeforeStop() {
	s.stopping.Store(true)
	if s.cfg.DrainTimeout == 0 {
		return
	}
	s.edge.Drain()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		d, _ := s.edge.Draining()
		if d.Remaining == 0 && time.Since(d.Since) >= drainNotice {
			return
		}
		if time.Since(began) >= s.cfg.DrainTimeout {
			s.log.Warn("not all devices have moved in time; the others are disconnected", "connections", d.Remaining,
				"limit", s.cfg.DrainTimeout)
			return
		}
	}
}

// leaderTimeout is how long an edge without a leader is ready: for as long as it holds requests.
const leaderTimeout = 10 * time.Second

// unready returns why a balancer should send new connections and requests to another edge; nil if it
// need not. The connections that the edge has go on.
func (s *EdgeServer) unready() error {
	if d, ok := s.edge.Draining(); ok {
		return fmt.Errorf("draining since %s; %d devices are still connected", d.Since.Format(time.DateTime+" UTC"),
			d.Remaining)
	}
	if expired := s.node.id.Expires(); !time.Now().Before(expired) {
		return fmt.Errorf("the certificate of this edge expired on %s: renew it with fleetd cluster cert",
			expired.UTC().Format(time.DateTime+" UTC"))
	}
	switch silent, known := s.link.LeaderSilence(); {
	case !known:
		return errors.New("no core has been reached yet")
	case silent >= leaderTimeout:
		return fmt.Errorf("no core has been reached for %v", silent.Truncate(time.Second))
	}
	return nil
}
