package server

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/logstream"
	"fleetd/fleet/mail"
	"fleetd/fleet/outbound"
	"fleetd/fleet/place"
	"fleetd/fleet/plugin"
	"fleetd/fleet/policy"
	"fleetd/fleet/publish"
	"fleetd/fleet/upstream"
	"fleetd/web/i18n"
)

// countHeld counts the devices, for alerts about presence: those at a silent edge count as online until it
// is lost. The edge has an alert itself.
func (s *Server) countHeld(ctx context.Context) (fleet.PresenceSample, error) {
	p, err := s.Devices.CountPresence(ctx)
	return p.Held(), err
}

func (s *Server) heldNow() (online, unresponsive int) {
	online, unresponsive, unknown := s.Presences.Counts()
	return online + unknown, unresponsive
}

// watchAlerts starts the loop that checks the health of the fleet.
func (s *Server) watchAlerts(ctx context.Context, cert *certificate) error {
	o := alert.Options{Store: s.store, Facts: s.store, Events: s.Events, Log: s.log,
		Disks: s.disks, Now: s.cfg.alertNow, Presence: s.countHeld, Connected: s.heldNow,
		Reconnects:   &s.reconnects,
		CheckAddress: func(text string) error { _, err := mail.Address(text); return err }}
	o.Certificates = func() (all []alert.Certificate) {
		if cert != nil {
			all = append(all, alert.Certificate{Name: filepath.Base(cert.certFile), Ends: cert.expiry()})
		}
		for _, n := range s.nodes() {
			if !n.Expires.IsZero() {
				all = append(all, alert.Certificate{Name: n.Name, Ends: n.Expires})
			}
		}
		return all
	}
	o.Upstreams = (&upstreamProbe{states: s.Upstreams.States, dial: s.outbound.DialWritten,
		down: make(map[uuid.UUID]time.Time)}).look
	o.Plugins = (&pluginProbe{list: s.Plugins.List, down: make(map[string]time.Time)}).look
	o.Receivers = (&receiverProbe{streams: s.LogStreams, places: s.Publisher, down: make(map[string]time.Time)}).look
	o.Quarantined = func() []alert.Quarantined { return quarantinedTools(s.ToolQuarantines.All()) }
	if s.node != nil {
		o.Nodes = s.nodes
	}
	if s.cfg.SMTPURL != "" {
		sender, err := mail.Open(s.cfg.SMTPURL, s.cfg.SMTPFrom)
		if err != nil {
			return fmt.Errorf("--smtp-url: %w", err) // check has already opened it
		}
		o.Mail, o.MailText = sender, alertMails{s.cfg.PublicURL}.text
	}
	s.Alerts = alert.New(o)
	s.Places = place.New(s.store, s.Alerts)
	if err := s.Alerts.Load(ctx); err != nil {
		return err
	}
	for _, k := range alert.Kinds {
		s.metrics.gauge("fleetd_alerts", "Alerts that have not ended, by kind.", prometheus.Labels{"kind": string(k)},
			func() float64 { return float64(s.Alerts.Count(k)) })
	}
	s.stages.add("alerts", s.Alerts.Run)
	s.stages.add("mails about alerts", s.Alerts.RunMail)
	return nil
}

// disks returns the disk of the data directory, and that of the blobs if it is
// another one.
func (s *Server) disks() (all []alert.Disk) {
	dirs := []string{s.cfg.DataDir}
	if path, ok := strings.CutPrefix(s.cfg.BlobURL, "file://"); ok {
		dirs = append(dirs, path)
	}
	seen := make(map[syscall.Fsid]bool)
	for _, dir := range dirs {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil || seen[st.Fsid] {
			continue // the directory does not exist yet
		}
		seen[st.Fsid] = true
		all = append(all, alert.Disk{Name: dir, Free: int64(st.Bavail) * st.Bsize, Total: int64(st.Blocks) * st.Bsize})
	}
	return all
}

// upstreamProbe finds the voice servers that cannot be reached: it opens a
// connection to each and closes it, and checks how their conversations began.
type upstreamProbe struct {
	states func() []upstream.State
	dial   outbound.DialFunc

	mu   sync.Mutex
	down map[uuid.UUID]time.Time // the time since which each is unreachable
}

// Limits for checks of voice servers. An older failure proves nothing about a
// server without conversations since then.
const (
	upstreamTimeout = 5 * time.Second
	upstreamRecent  = 10 * time.Minute
)

func (p *upstreamProbe) look(ctx context.Context) (all []alert.Upstream) {
	ctx, cancel := context.WithTimeout(ctx, upstreamTimeout)
	defer cancel()
	now := time.Now()
	known := make(map[uuid.UUID]bool)
	var wait sync.WaitGroup
	for _, u := range p.states() {
		if !u.Enabled || u.Kind == upstream.None {
			continue
		}
		known[u.ID] = true
		wait.Go(func() {
			h := u.Health
			bad := h.Down() && h.LastFailure != nil && now.Sub(*h.LastFailure) < upstreamRecent || !p.reachable(ctx, u.URL)
			p.mu.Lock()
			defer p.mu.Unlock()
			switch {
			case !bad:
				delete(p.down, u.ID)
			case p.down[u.ID].IsZero():
				p.down[u.ID] = now
			}
			all = append(all, alert.Upstream{Name: u.Name, Down: p.down[u.ID]})
		})
	}
	wait.Wait()
	maps.DeleteFunc(p.down, func(id uuid.UUID, _ time.Time) bool { return !known[id] })
	return all
}

// reachable reports whether the host of an address accepts connections.
func (p *upstreamProbe) reachable(ctx context.Context, address string) bool {
	conn, err := p.dial(ctx, "tcp", outbound.HostPort(address))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// pluginProbe finds the plug-ins that end again and again, or cannot run. A plug-in is down until
// it runs: it also starts and waits in between.
type pluginProbe struct {
	list func(fleet.Principal) ([]plugin.Listed, error)
	down map[string]time.Time // the time since which each is down; used by the loop of alerts alone
}

func (p *pluginProbe) look() (all []alert.Plugin) {
	list, err := p.list(fleet.Principal{Kind: fleet.KindSystem, Role: fleet.RoleAdmin})
	if err != nil {
		return nil
	}
	known := make(map[string]bool, len(list))
	for _, l := range list {
		known[l.Name] = true
		switch l.State {
		case plugin.Invalid, plugin.Crashing:
			if p.down[l.Name].IsZero() {
				p.down[l.Name] = time.Now().UTC()
			}
		case plugin.Running, plugin.Disabled:
			delete(p.down, l.Name)
		}
		why := l.Reason
		if l.State == plugin.Invalid {
			why = l.Problem.Or(why)
		}
		all = append(all, alert.Plugin{Name: l.Name, Down: p.down[l.Name], Why: why, Invalid: l.State == plugin.Invalid})
	}
	maps.DeleteFunc(p.down, func(name string, _ time.Time) bool { return !known[name] })
	return all
}

// quarantinedTools groups quarantines, which are ordered by device.
func quarantinedTools(list []policy.ToolQuarantine) (all []alert.Quarantined) {
	for _, q := range list {
		n := len(all)
		if n == 0 || all[n-1].Device != q.Device {
			all = append(all, alert.Quarantined{Device: q.Device, Since: q.Since})
			n++
		}
		of := &all[n-1]
		of.Tools = append(of.Tools, q.Tool)
		if q.Since.Before(of.Since) {
			of.Since = q.Since
		}
	}
	return all
}

// alertMails writes mails about alerts, in the language of the settings.
type alertMails struct{ publicURL string }

func (m alertMails) text(lang string, d alert.Digest) (subject, text string) {
	l := i18n.Lang(lang)
	if d.Test {
		return i18n.Text(l, "mail.test_subject"), i18n.Text(l, "mail.test", "url", m.publicURL) + "\n"
	}
	counts := make(map[alert.Event]int)
	var b strings.Builder
	if d.More > 0 {
		b.WriteString(i18n.Text(l, "mail.more", "n", d.More) + "\n\n")
	}
	for _, item := range d.Items {
		counts[item.Record.Event]++
		line := i18n.Text(l, "alert.event."+string(item.Record.Event))
		if item.Record.Event == alert.Opened || item.Record.Event == alert.Worsened {
			line += " (" + i18n.Text(l, "alert.severity."+string(item.Record.Severity)) + ")"
		}
		b.WriteString(line + ": " + i18n.Because(l, time.UTC, "alert.what.", item.Alert.Reason()) + "\n")
		if item.Record.By.Name != "" {
			b.WriteString("  " + i18n.Text(l, "alert.acked_by") + " " + item.Record.By.Name)
			if item.Record.Note != "" {
				b.WriteString(": " + item.Record.Note)
			}
			b.WriteString("\n")
		}
		b.WriteString("  " + i18n.DateTime(l, item.Record.At.UTC()) + " UTC\n  " + m.publicURL + "/alerts/" +
			item.Record.Alert.String() + "\n\n")
	}
	b.WriteString(i18n.Text(l, "mail.open", "n", d.Open, "url", m.publicURL+"/alerts") + "\n")
	// The subject names the worst new event.
	for _, e := range []alert.Event{alert.Opened, alert.Worsened, alert.Acked, alert.Closed} {
		if n := counts[e]; n > 0 {
			return i18n.Text(l, "mail.subject."+string(e), "n", n, "open", d.Open), b.String()
		}
	}
	return i18n.Text(l, "mail.subject.ended", "n", 0, "open", d.Open), b.String()
}

// receiverProbe finds the log streams, places and witnesses that do not take the record.
type receiverProbe struct {
	streams *logstream.Service
	places  *publish.Publisher
	down    map[string]time.Time // the time since which each stream fails; used by the loop of alerts alone
}

func (p *receiverProbe) look() (all []alert.Receiver) {
	failing := p.streams.State().Failing
	for _, name := range failing {
		if p.down[name].IsZero() {
			p.down[name] = time.Now().UTC()
		}
		all = append(all, alert.Receiver{Name: name, Down: p.down[name]})
	}
	maps.DeleteFunc(p.down, func(name string, _ time.Time) bool { return !slices.Contains(failing, name) })
	for _, place := range p.places.States() {
		all = append(all, alert.Receiver{Name: place.To, Down: place.Since,
			Replaced: place.Why.Is("witness_ahead") || place.Why.Is("witness_inconsistent")})
	}
	return all
}
