package server

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"fleetd/broker/edge"
	"fleetd/broker/voice"
	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/picture"
	"fleetd/fleet/postgres"
	"fleetd/fleet/upstream"
	"fleetd/web/device"
	"fleetd/web/i18n"
)

// openUpstreams reads the voice servers: those on record, and after them the one
// that the command line names.
func (s *Server) openUpstreams(ctx context.Context, sealer upstream.Sealer) error {
	s.voiceWanted = make(chan struct{}, 1)
	o := upstream.Options{Store: s.store, Sealer: sealer, Targets: s.targets, Link: upstreamLink{s}, Log: s.log,
		Changed: func() {
			select {
			case s.voiceWanted <- struct{}{}:
			default:
			}
		}}
	if s.cfg.VoiceUpstream != "" {
		u := voice.Upstream{URL: s.cfg.VoiceUpstream, Name: s.cfg.voiceName}
		if err := u.Check(); err != nil {
			return err
		}
		o.Fixed = &upstream.Choice{Server: upstream.Server{Name: u.Name, URL: u.URL, Auth: upstream.AuthNone},
			Key: s.cfg.VoiceSecret}
		if s.cfg.VoiceSecret != "" {
			o.Fixed.Auth = upstream.AuthSecret
		}
	}
	s.Upstreams = upstream.New(o)
	if err := s.Upstreams.Load(ctx); err != nil {
		return err
	}
	s.stages.add("voice servers", s.Upstreams.Run)
	s.accounts = voice.NewAccounts(voice.AccountsOptions{Store: s.store, Sealer: sealer, Choose: s.Upstreams.Choose,
		Guard: s.outbound, Log: s.log})
	s.stages.add("accounts at voice servers", s.accounts.Run)
	return nil
}

// upstreamLink gives the relay access to the voice servers. There may be none yet.
type upstreamLink struct{ *Server }

func (l upstreamLink) UpstreamHealth(id uuid.UUID, changed time.Time) upstream.Health {
	if l.talks != nil {
		return l.talks.Health(id, changed)
	}
	if relay := l.voice.Load(); relay != nil {
		return relay.Health(id, changed)
	}
	return upstream.Health{}
}

// checkUpstreamTimeout bounds a check without a relay.
const checkUpstreamTimeout = 9 * time.Second

func (l upstreamLink) CheckUpstream(ctx context.Context, c upstream.Choice) upstream.Check {
	if relay := l.voice.Load(); relay != nil {
		return relay.Check(ctx, l.voiceUpstream(c))
	}
	return voice.Check(ctx, l.voiceUpstream(c), checkUpstreamTimeout)
}

// voicePolls passes boot polls to voice servers.
type voicePolls struct{ accounts *voice.Accounts }

func (v voicePolls) Polled(p enrolment.BootPoll) {
	v.accounts.Polled(voice.Poll{Device: p.Device, ClientID: p.ClientID, UserAgent: p.UserAgent, Language: p.Language,
		Serial: p.SerialNumber, Body: p.Facts})
}

func (v voicePolls) Code(id fleet.DeviceID) *enrolment.Activation {
	code, message, ok := v.accounts.Show(id)
	if !ok {
		return nil
	}
	// The challenge makes the device request whether it was activated.
	return &enrolment.Activation{Code: code, Message: message, Challenge: "voice"}
}

// voiceUpstream converts a voice server for the relay.
func (s *Server) voiceUpstream(c upstream.Choice) voice.Upstream {
	if c.Kind == upstream.OTA {
		return s.accounts.Of(c)
	}
	u := voice.Upstream{ID: c.ID, Changed: c.UpdatedAt, Name: c.Name, URL: c.URL, NoTools: !c.Tools,
		Guard: s.outbound}
	switch c.Auth {
	case upstream.AuthSecret:
		u.Secret = c.Key
	case upstream.AuthToken:
		u.Token = c.Key
	}
	return u
}

// startVoice starts the relay of conversations once there is a voice server. It
// opens the relay's port only then. In a cluster the edges relay.
func (s *Server) startVoice(ctx context.Context) error {
	if s.node != nil {
		s.openTalks()
		return nil
	}
	if err := s.closeOldConversations(ctx, farFuture, nil); err != nil {
		return err
	}
	var relay *voice.Relay
	if s.Upstreams.Any() {
		var err error
		if relay, err = s.openRelay(); err != nil {
			return err
		}
	}
	s.stages.add("voice", func(ctx context.Context) error {
		for relay == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-s.voiceWanted:
			}
			if !s.Upstreams.Any() {
				continue
			}
			var err error
			if relay, err = s.openRelay(); err != nil {
				s.log.Error("conversations cannot be relayed; trying again after the next change of the voice servers",
					"err", err)
			}
		}
		return relay.Run(ctx)
	})
	return nil
}

// farFuture is after the begin of each conversation, whatever the clock said then.
var farFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// closeOldConversations ends the conversations on record that began before a time and are relayed by no
// process any more.
func (s *Server) closeOldConversations(ctx context.Context, before time.Time, relayed []uuid.UUID) error {
	ended, err := s.store.RecoverConversations(ctx, time.Now().UTC(), before, relayed)
	if err == nil && ended > 0 {
		s.log.Info("conversations left open were ended", "count", ended)
	}
	return err
}

// announcedConversations notifies pages when the record of a conversation is
// stored, so they read it.
type announcedConversations struct {
	*postgres.Store
	events *fleet.Events
}

func (a announcedConversations) SaveConversations(ctx context.Context, list []fleet.Conversation) error {
	if err := a.Store.SaveConversations(ctx, list); err != nil {
		return err
	}
	for _, c := range list {
		a.events.Publish(fleet.Event{Kind: fleet.EventConversation, At: time.Now().UTC(), Device: c.Device,
			Subject: c.ID.String()})
	}
	return nil
}

func (s *Server) openRelay() (*voice.Relay, error) {
	relay, err := voice.New(voice.Options{Choose: s.chooseUpstream, Addr: s.cfg.VoiceUDPAddr,
		Endpoint: s.cfg.VoiceUDPEndpoint, Calls: s.Calls, Programs: voicePrograms{s}, Open: s.open,
		Store: announcedConversations{s.store, s.Events}, Texts: voiceTexts(s.cfg.VoiceLanguage),
		Log: s.log})
	if err != nil {
		return nil, err
	}
	s.metrics.registry.MustRegister(voiceMetrics{relay}, upstreamMetrics{s.Upstreams})
	s.voice.Store(relay)
	return relay, nil
}

// voicePrograms are the plug-ins and endpoints whose tools the models of voice servers get.
type voicePrograms struct{ *Server }

func (v voicePrograms) all() []fleet.DeviceID {
	return slices.Concat(v.Plugins.OfferedToVoice(), v.Endpoints.OfferedToVoice())
}

func (v voicePrograms) OfferedToVoice(context.Context, fleet.Principal) ([]fleet.DeviceID, error) {
	return slices.DeleteFunc(v.all(), func(id fleet.DeviceID) bool { return !v.host.Introduced(id) }), nil
}

func (v voicePrograms) OffersToVoice(id fleet.DeviceID) bool { return slices.Contains(v.all(), id) }

func (s *Server) chooseUpstream(ctx context.Context, h voice.Hello) (voice.Upstream, bool, error) {
	c, ok := s.Upstreams.Choose(ctx, h.Device)
	if !ok {
		return voice.Upstream{}, false, nil
	}
	u := s.voiceUpstream(c)
	u.AllowReboot = s.cfg.VoiceReboot
	return u, true, nil
}

// A voiceExplainer sends a picture to the voice server whose model requested it,
// and all other pictures to the configured vision service.
type voiceExplainer struct {
	server *Server
	other  device.Explainer // nil without one
}

func (e voiceExplainer) Explain(ctx context.Context, p picture.Photo, clientID string) ([]byte, error) {
	if p.AskedBy.Kind == fleet.KindVoice {
		if v, ok := e.server.visionOf(p); ok {
			return device.NewVisionUpstream(v.URL, v.Token, e.server.outbound).DialBy(v.Dial).Explain(ctx, p, clientID)
		}
	}
	if e.other == nil {
		return nil, nil
	}
	return e.other.Explain(ctx, p, clientID)
}

// visionOf returns where the voice server that asked for a picture wants it.
func (s *Server) visionOf(p picture.Photo) (voice.Vision, bool) {
	if s.talks != nil {
		return s.talks.Vision(p.AskedBy.ID, p.Device)
	}
	if relay := s.voice.Load(); relay != nil {
		return relay.Vision(p.AskedBy.ID, p.Device)
	}
	return voice.Vision{}, false
}

// edgeVoice gives the edge access to the relay, which starts later.
type edgeVoice struct{ relay *atomic.Pointer[voice.Relay] }

func (v edgeVoice) Begin(d edge.VoiceDevice, hello []byte) edge.Conversation {
	if relay := v.relay.Load(); relay != nil {
		return relay.Begin(d, hello)
	}
	return nil
}

// VoiceAddr returns the listen address for the audio of conversations; nil without
// a voice server.
func (s *Server) VoiceAddr() net.Addr {
	if relay := s.voice.Load(); relay != nil {
		return relay.Addr()
	}
	return nil
}

// defaultVoiceUDPAddr is the default listen address for devices' audio.
const defaultVoiceUDPAddr = ":8884"

// voiceTexts are the texts in one language that devices show and models speak.
type voiceTexts i18n.Lang

func (l voiceTexts) Ended(how fleet.ConversationEnd) (title, text string) {
	return i18n.Text(i18n.Lang(l), "voice.title"), i18n.Text(i18n.Lang(l), "voice.ended."+string(how))
}

func (l voiceTexts) Call(c fleet.Call) string {
	switch text, _ := i18n.CallError(i18n.Lang(l), nil, c.Error); {
	case c.State == fleet.CallPendingApproval:
		return i18n.Text(i18n.Lang(l), "voice.pending_approval")
	case text != "":
		return text
	}
	return i18n.Text(i18n.Lang(l), "voice.failed")
}

func (l voiceTexts) Error(err error) string {
	if e, ok := errors.AsType[*fleet.Error](err); ok {
		return i18n.Error(i18n.Lang(l), nil, e)
	}
	return i18n.Text(i18n.Lang(l), "voice.failed")
}

// voiceMetrics exports the relay's numbers, all from one reading.
type voiceMetrics struct{ relay *voice.Relay }

// upstreamMetrics exports the state of each voice server.
type upstreamMetrics struct{ upstreams *upstream.Service }

// A voiceMetric is one number of the relay with its name as a metric.
type voiceMetric struct {
	desc *prometheus.Desc
	read func(*voice.Stats) int64
}

func voiceCounter(name, help string, read func(*voice.Stats) int64) voiceMetric {
	return voiceMetric{prometheus.NewDesc("fleetd_voice_"+name+"_total", help, nil, nil), read}
}

var (
	voiceLeftOutDesc = prometheus.NewDesc("fleetd_voice_tools_left_out",
		"Tools of plug-ins and endpoints that the latest list for a voice server left out; the log names one.", nil, nil)
	voiceOpenDesc  = prometheus.NewDesc("fleetd_voice_conversations", "Conversations that are open.", nil, nil)
	voiceEndedDesc = prometheus.NewDesc("fleetd_voice_conversations_ended_total",
		"Conversations by how they ended; errors of the voice server have codes that begin with upstream.",
		[]string{"end"}, nil)
	voiceHelloDesc = prometheus.NewDesc("fleetd_voice_hello_seconds",
		"From a device's hello to that of the voice server.", nil, nil)
)

// Each voice server has these. Names may repeat, ids may not.
var (
	upstreamLabels   = []string{"upstream", "id"}
	upstreamOpenDesc = prometheus.NewDesc("fleetd_voice_upstream_conversations",
		"Conversations that are open with the voice server.", upstreamLabels, nil)
	upstreamDownDesc = prometheus.NewDesc("fleetd_voice_upstream_down",
		"1 while the voice server has failed so often that devices are answered without it.", upstreamLabels, nil)
	upstreamFailedDesc = prometheus.NewDesc("fleetd_voice_upstream_failures_total",
		"Conversations that the voice server did not open, since fleetd started or the server was changed.",
		upstreamLabels, nil)
	upstreamHelloDesc = prometheus.NewDesc("fleetd_voice_upstream_hello_seconds",
		"Until the hello of the voice server, the last time.", upstreamLabels, nil)
)

var voiceMetricList = []voiceMetric{
	voiceCounter("conversations", "Conversations begun.", func(s *voice.Stats) int64 { return s.Begun }),
	voiceCounter("calls", "Tool calls of the voice server's model.", func(s *voice.Stats) int64 { return s.Calls }),
	voiceCounter("audio_up", "Audio packets relayed to the voice server.", func(s *voice.Stats) int64 { return s.AudioUp }),
	voiceCounter("audio_down", "Audio packets sent to devices.", func(s *voice.Stats) int64 { return s.AudioDown }),
	voiceCounter("audio_lost", "Audio packets of devices that did not arrive, counted at the end of a conversation.",
		func(s *voice.Stats) int64 { return s.Lost }),
	voiceCounter("audio_refused",
		"Audio packets that were replayed, forged or damaged, counted at the end of a conversation.",
		func(s *voice.Stats) int64 { return s.Refused }),
	voiceCounter("audio_dropped", "Audio packets that came too late, or before the device's address was known.",
		func(s *voice.Stats) int64 { return s.Late }),
	voiceCounter("datagrams_malformed", "Datagrams that are no audio packets.",
		func(s *voice.Stats) int64 { return s.Malformed }),
	voiceCounter("datagrams_unknown", "Datagrams of no conversation.", func(s *voice.Stats) int64 { return s.Unknown }),
	voiceCounter("messages", "JSON messages relayed.", func(s *voice.Stats) int64 { return s.Messages }),
	voiceCounter("messages_dropped", "JSON messages that are not relayed: not allowed, or not understood.",
		func(s *voice.Stats) int64 { return s.NotRelayed }),
	voiceCounter("unrecorded", "Records of conversations that were lost for want of the database.",
		func(s *voice.Stats) int64 { return s.NotRecorded }),
}

// Describe implements prometheus.Collector.
func (voiceMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- voiceOpenDesc
	descs <- voiceLeftOutDesc
	descs <- voiceEndedDesc
	descs <- voiceHelloDesc
	for _, m := range voiceMetricList {
		descs <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (v voiceMetrics) Collect(metrics chan<- prometheus.Metric) {
	s := v.relay.Stats()
	metrics <- prometheus.MustNewConstMetric(voiceOpenDesc, prometheus.GaugeValue, float64(s.Open))
	metrics <- prometheus.MustNewConstMetric(voiceLeftOutDesc, prometheus.GaugeValue, float64(s.LeftOut))
	for _, how := range fleet.ConversationEnds {
		metrics <- prometheus.MustNewConstMetric(voiceEndedDesc, prometheus.CounterValue, float64(s.Ended[how]), string(how))
	}
	buckets, total := make(map[float64]uint64), uint64(0)
	for i, bound := range voice.HelloBuckets {
		total += uint64(s.Hellos[i])
		buckets[bound.Seconds()] = total
	}
	total += uint64(s.Hellos[len(voice.HelloBuckets)])
	metrics <- prometheus.MustNewConstHistogram(voiceHelloDesc, total, s.HelloSum.Seconds(), buckets)
	for _, m := range voiceMetricList {
		metrics <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(m.read(&s)))
	}
}

// Describe implements prometheus.Collector.
func (upstreamMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- upstreamOpenDesc
	descs <- upstreamDownDesc
	descs <- upstreamFailedDesc
	descs <- upstreamHelloDesc
}

// Collect implements prometheus.Collector.
func (v upstreamMetrics) Collect(metrics chan<- prometheus.Metric) {
	for _, u := range v.upstreams.States() {
		if u.Kind == upstream.None {
			continue
		}
		show := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64) {
			metrics <- prometheus.MustNewConstMetric(desc, kind, value, u.Name, u.ID.String())
		}
		down := 0.0
		if u.Health.Down() {
			down = 1
		}
		show(upstreamOpenDesc, prometheus.GaugeValue, float64(u.Health.Open))
		show(upstreamDownDesc, prometheus.GaugeValue, down)
		show(upstreamFailedDesc, prometheus.CounterValue, float64(u.Health.Failed))
		show(upstreamHelloDesc, prometheus.GaugeValue, u.Health.HelloIn.Seconds())
	}
}

// checkVoice checks the addresses of conversations. Port 0 is resolved later.
func (c *Config) checkVoice() error {
	if c.VoiceUpstream != "" {
		if err := (&voice.Upstream{URL: c.VoiceUpstream}).Check(); err != nil {
			return errors.New("--voice-upstream: " + err.Error())
		}
	}
	host, port, err := net.SplitHostPort(c.VoiceUDPAddr)
	if n, badPort := strconv.Atoi(port); err != nil || badPort != nil || n < 0 || n > 65535 {
		return errors.New("--voice-udp-addr " + strconv.Quote(c.VoiceUDPAddr) + " is not an address; write host:port or :port")
	}
	if c.VoiceUDPEndpoint == "" {
		if host = reachableHost(host); c.Role != RoleEdge { // PublicURL is the address of all edges
			host = c.publicHostname()
		}
		c.VoiceUDPEndpoint = net.JoinHostPort(host, port)
	}
	host, port, err = net.SplitHostPort(c.VoiceUDPEndpoint)
	if n, badPort := strconv.Atoi(port); err != nil || host == "" || badPort != nil || n < 0 || n > 65535 {
		return errors.New("--voice-udp-endpoint " + strconv.Quote(c.VoiceUDPEndpoint) +
			" is not an address for devices; use host:port")
	}
	if c.VoiceLanguage != string(i18n.English) && c.VoiceLanguage != string(i18n.Chinese) {
		return errors.New("unknown --voice-language " + strconv.Quote(c.VoiceLanguage) + "; use en or zh-CN")
	}
	return nil
}
