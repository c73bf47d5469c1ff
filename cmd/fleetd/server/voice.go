package server

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"fleetd/broker"
	"fleetd/broker/voice"
	"fleetd/fleet"
	"fleetd/web/i18n"

	"github.com/prometheus/client_golang/prometheus"
)

// startVoice starts the relay of conversations, if there is a voice server.
func (s *Server) startVoice(ctx context.Context) error {
	if s.cfg.VoiceUpstream == "" {
		return nil
	}
	if open, err := s.store.RecoverConversations(ctx, time.Now().UTC()); err != nil {
		return err
	} else if open > 0 {
		s.log.Info("conversations left open by the last run were ended", "count", open)
	}
	relay, err := voice.New(voice.Options{Upstream: voice.Upstream{URL: s.cfg.VoiceUpstream, Secret: s.cfg.VoiceSecret},
		Addr: s.cfg.VoiceUDPAddr, Endpoint: s.cfg.VoiceUDPEndpoint, Calls: s.Calls, Store: s.store,
		Texts: voiceTexts(s.cfg.VoiceLanguage), AllowReboot: s.cfg.VoiceReboot, Log: s.log})
	if err != nil {
		return err
	}
	s.metrics.registry.MustRegister(voiceMetrics{relay})
	s.stages.run("voice", relay.Run)
	s.voice.Store(relay)
	return nil
}

// brokerVoice is nil without a voice server.
func (s *Server) brokerVoice() broker.Voice {
	if s.cfg.VoiceUpstream == "" {
		return nil
	}
	return brokerVoice{s}
}

// brokerVoice shows the relay to the broker, which starts before it.
type brokerVoice struct{ *Server }

func (v brokerVoice) Begin(d broker.VoiceDevice, hello []byte) broker.Conversation {
	relay := v.voice.Load()
	if relay == nil {
		return nil
	}
	return relay.Begin(d, hello)
}

// VoiceAddr is where the audio of conversations is received; nil without a voice
// server.
func (s *Server) VoiceAddr() net.Addr {
	if relay := s.voice.Load(); relay != nil {
		return relay.Addr()
	}
	return nil
}

// voiceTexts are the texts that devices show, and models say, in one language.
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

// voiceMetrics shows the relay's numbers, all from one reading.
type voiceMetrics struct{ relay *voice.Relay }

// A voiceMetric is one number of the relay under the name it is shown by.
type voiceMetric struct {
	desc *prometheus.Desc
	read func(*voice.Stats) int64
}

func voiceCounter(name, help string, read func(*voice.Stats) int64) voiceMetric {
	return voiceMetric{prometheus.NewDesc("fleetd_voice_"+name+"_total", help, nil, nil), read}
}

var (
	voiceOpenDesc  = prometheus.NewDesc("fleetd_voice_conversations", "Conversations that are open.", nil, nil)
	voiceEndedDesc = prometheus.NewDesc("fleetd_voice_conversations_ended_total",
		"Conversations by how they ended; errors of the voice server have codes that begin with upstream.",
		[]string{"end"}, nil)
	voiceHelloDesc = prometheus.NewDesc("fleetd_voice_hello_seconds",
		"From a device's hello to that of the voice server.", nil, nil)
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

// checkVoice holds the addresses of conversations to what works. Port 0 is known
// later.
func (c *Config) checkVoice() error {
	if c.VoiceUpstream == "" {
		return nil
	}
	if err := (&voice.Upstream{URL: c.VoiceUpstream}).Check(); err != nil {
		return errors.New("--voice-upstream: " + err.Error())
	}
	_, port, err := net.SplitHostPort(c.VoiceUDPAddr)
	if n, badPort := strconv.Atoi(port); err != nil || badPort != nil || n < 0 || n > 65535 {
		return errors.New("--voice-udp-addr " + strconv.Quote(c.VoiceUDPAddr) + " is no address; write host:port or :port")
	}
	if c.VoiceUDPEndpoint == "" {
		c.VoiceUDPEndpoint = net.JoinHostPort(c.publicHostname(), port)
	}
	host, port, err := net.SplitHostPort(c.VoiceUDPEndpoint)
	if n, badPort := strconv.Atoi(port); err != nil || host == "" || badPort != nil || n < 0 || n > 65535 {
		return errors.New("--voice-udp-endpoint " + strconv.Quote(c.VoiceUDPEndpoint) +
			" is no address for devices; write host:port")
	}
	if c.VoiceLanguage != string(i18n.English) && c.VoiceLanguage != string(i18n.Chinese) {
		return errors.New("--voice-language " + strconv.Quote(c.VoiceLanguage) + " is not known: write en or zh-CN")
	}
	return nil
}
