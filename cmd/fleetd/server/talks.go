package server

import (
	"cmp"
	"context"
	"time"

	"fleetd/broker/voice"
	"fleetd/broker/voicelink"
	"fleetd/fleet"
	"fleetd/fleet/outbound"
	"fleetd/web/door"
	"fleetd/web/i18n"
)

// openTalks makes what answers the edges' questions about conversations.
func (s *Server) openTalks() {
	s.talks = voicelink.NewCore(voicelink.CoreOptions{Key: s.talksKey, Edge: door.EdgeOf, Connection: s.connection,
		Attached: s.link.Attached, Choose: s.chooseUpstream, Calls: s.Calls, Programs: voicePrograms{s},
		Records: announcedConversations{s.store, s.Events}, Open: s.open, Language: s.cfg.VoiceLanguage, Guard: s.outbound,
		Log: s.log})
	s.metrics.registry.MustRegister(upstreamMetrics{s.Upstreams})
	s.stages.add("records of conversations", s.endTalks)
}

const (
	// endTalksEvery is how often conversations end on record whose edge is lost. The first time comes
	// after the edges have reported those that outlived the previous leader.
	endTalksEvery = 10 * time.Second
	// newTalk is how long the report of a conversation may follow its record.
	newTalk = 10 * time.Second
)

// endTalks ends the conversations on record that no edge relays, until ctx ends. If an edge does relay
// one and could not report it, the record that it sends later counts.
func (s *Server) endTalks(ctx context.Context) error {
	tick := time.NewTicker(endTalksEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		before := time.Now().UTC().Add(-newTalk)
		if err := s.closeOldConversations(ctx, before, s.talks.Conversations()); err != nil && ctx.Err() == nil {
			s.log.Warn("conversations of lost edges are still open on record", "err", err)
		}
	}
}

// leaderAsker asks the core that leads on behalf of the relay.
type leaderAsker struct{ *EdgeServer }

// Ask implements [voicelink.Asker].
func (a leaderAsker) Ask(ctx context.Context, q voicelink.Question) (int, []byte, error) {
	return a.door.Ask(ctx, door.Question(q))
}

// relayRetry is the time between attempts to open the relay of an edge.
const relayRetry = 10 * time.Second

// relay relays conversations until ctx ends. The edge serves its devices without it, too: if the UDP
// address is in use, they have no conversations meanwhile.
func (s *EdgeServer) relay(ctx context.Context) error {
	for {
		relay, err := s.openRelay()
		if err == nil {
			s.talks.Health(relay.Healths)
			s.metrics.registry.MustRegister(voiceMetrics{relay})
			s.voice.Store(relay)
			return s.runRelay(ctx, relay)
		}
		s.log.Error("conversations cannot be relayed; trying again: choose another address with --voice-udp-addr, or end"+
			" the process that uses it", "err", err)
		select {
		case <-time.After(relayRetry):
		case <-ctx.Done():
			return nil
		}
	}
}

// runRelay runs the relay and, for somewhat longer, its reports.
func (s *EdgeServer) runRelay(ctx context.Context, relay *voice.Relay) error {
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		_ = s.talks.Run(reporting) // never fails
	}()
	err := relay.Run(ctx)
	stop()
	<-reported
	return err
}

func (s *EdgeServer) openRelay() (*voice.Relay, error) {
	const helloTimeout, coreTimeout = 9 * time.Second, 28 * time.Second // devices wait 10s, voice servers 30s
	return voice.New(voice.Options{Choose: s.talks.Choose, Addr: s.cfg.VoiceUDPAddr, Endpoint: s.cfg.VoiceUDPEndpoint,
		Calls: s.talks, Programs: s.talks, Store: s.talks, Open: s.talks, OnVision: s.talks.OnVision,
		Texts: talkTexts{s.talks}, HelloTimeout: helloTimeout, ChooseTimeout: helloTimeout, OfferTimeout: coreTimeout,
		KeepRecords: true, Log: s.log})
}

func newTalks(s *EdgeServer) *voicelink.Client {
	return voicelink.NewClient(voicelink.ClientOptions{Asker: leaderAsker{s},
		Guard: outbound.New(outbound.Options{Allow: s.cfg.AllowOutbound}), Log: s.log})
}

// talkTexts are the texts in the language of the core.
type talkTexts struct{ *voicelink.Client }

func (t talkTexts) texts() voiceTexts { return voiceTexts(cmp.Or(t.Language(), string(i18n.English))) }

func (t talkTexts) Ended(how fleet.ConversationEnd) (title, text string) { return t.texts().Ended(how) }
func (t talkTexts) Call(c fleet.Call) string                             { return t.texts().Call(c) }
func (t talkTexts) Error(err error) string                               { return t.texts().Error(err) }
