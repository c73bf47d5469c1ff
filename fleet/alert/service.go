package alert

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/cluster"
)

// Options configures a [Service]. Store and Facts are required.
type Options struct {
	Store  Store
	Facts  Facts
	Events *fleet.Events // nil publishes no events
	Log    *slog.Logger
	Now    func() time.Time // default: time.Now
	Every  time.Duration    // minimum interval between checks of a condition. Default: half a minute

	// Presence counts the fleet as pages do; it may read the database. If it is nil,
	// conditions of presence are not checked.
	Presence func(context.Context) (fleet.PresenceSample, error)
	// Connected returns the numbers of connected devices that are responsive and
	// unresponsive. It is read from memory each second and determines when to call Presence.
	// If it is nil, Presence is called at each check.
	Connected  func() (online, unresponsive int)
	Reconnects *Reconnects // nil: flapping is not checked

	Mail         Mailer                                             // nil: no mail is sent
	MailText     func(lang string, d Digest) (subject, text string) // required with Mail
	CheckAddress func(string) error                                 // checks a recipient; nil forbids recipients
	MailEvery    time.Duration                                      // minimum between two mails. Default: 1m
	MailLook     time.Duration                                      // how often to check for events. Default: 5s

	Certificates func() []Certificate                 // nil: none
	Disks        func() []Disk                        // nil: none
	Upstreams    func(ctx context.Context) []Upstream // voice servers; nil: none
	Plugins      func() []Plugin                      // nil: none
	Receivers    func() []Receiver                    // nil: none
	Quarantined  func() []Quarantined                 // nil: none
	Nodes        func() []cluster.Node                // nil: fleetd is not in a cluster
}

// Service manages alerts for people and runs the loop that checks the conditions.
type Service struct {
	o        Options
	started  time.Time
	presence presenceWatch // used only by the loop

	// Since when no core has stood by, and since when versions differ; zero otherwise. Used only by
	// the loop.
	alone, mixed time.Time
	heard        map[string]bool // nodes that this process has known; used only by the loop

	mu       sync.Mutex
	settled  bool    // presence counts because devices had time to reconnect
	open     []Alert // alerts that have not ended, the worst first
	settings Settings
	silences []Silence                // that have not ended, the longest first
	affected map[key][]fleet.DeviceID // devices of open alerts whose query lists only the first
	pending  map[key]time.Time        // since when a condition without an alert has held
	looked   map[Kind]time.Time       // when a condition was last checked
	counts   map[Kind]int             // of open, by kind
	mailed   MailStatus
}

// A key identifies the subject of an alert; at most one alert is open per key.
type key struct {
	kind    Kind
	subject string
}

// New returns the service. The time for devices to reconnect starts now.
func New(o Options) *Service {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Now().UTC() }
	}
	o.Every = cmp.Or(o.Every, lookEvery)
	o.MailEvery, o.MailLook = cmp.Or(o.MailEvery, mailEvery), cmp.Or(o.MailLook, mailLook)
	return &Service{o: o, started: o.Now(), settings: DefaultSettings(), pending: make(map[key]time.Time),
		affected: make(map[key][]fleet.DeviceID),
		heard:    make(map[string]bool), looked: make(map[Kind]time.Time), counts: make(map[Kind]int),
		mailed: MailStatus{Enabled: o.Mail != nil}}
}

// Load reads the settings and the alerts that have not ended.
func (s *Service) Load(ctx context.Context) error {
	settings, err := s.o.Store.AlertSettings(ctx)
	if err != nil {
		return err
	}
	open, err := s.o.Store.OpenAlerts(ctx)
	if err != nil {
		return err
	}
	silences, err := s.o.Store.ActiveSilences(ctx, s.o.Now())
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.settings, s.silences = settings.Complete(), silences
	s.mu.Unlock()
	s.setOpen(open)
	return nil
}

func (s *Service) setOpen(open []Alert) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = open
	clear(s.counts)
	for _, a := range open {
		s.counts[a.Kind]++
	}
}

// A Summary counts the alerts that are neither acknowledged nor silenced.
type Summary struct {
	Open  int
	Worst Severity // highest severity; "" if there are none
}

// Sees reports whether alerts exist for the principal. Alerts count the whole fleet, so a
// principal that does not see all of it sees no alerts.
func Sees(p fleet.Principal) bool { return p.FleetRole() != "" }

// Summary returns the counts that every page shows. It reads only memory.
func (s *Service) Summary(by fleet.Principal) (sum Summary) {
	if !Sees(by) {
		return sum
	}
	now := s.o.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.open {
		if a.State != Open || a.Silenced(now) {
			continue
		}
		sum.Open++
		if a.Severity == Bad || sum.Worst == "" {
			sum.Worst = a.Severity
		}
	}
	return sum
}

// Count returns how many alerts of a kind have not ended.
func (s *Service) Count(k Kind) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[k]
}

// Current lists the alerts that have not ended, the worst first. It reads only memory.
func (s *Service) Current(by fleet.Principal) []Alert {
	if !Sees(by) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.open)
}

// Settling reports whether fleetd started so recently that devices may still reconnect. Then
// presence does not count yet.
func (s *Service) Settling() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.settled && s.o.Now().Sub(s.started) < s.settings.Settle
}

// List lists alerts, newest first.
func (s *Service) List(ctx context.Context, by fleet.Principal, f Filter) (fleet.Page[Alert], error) {
	if err := by.May(fleet.RoleViewer, "see_alerts"); err != nil {
		return fleet.Page[Alert]{}, err
	}
	return s.o.Store.Alerts(ctx, f)
}

// Get returns an alert and its history.
func (s *Service) Get(ctx context.Context, by fleet.Principal, id uuid.UUID) (Alert, []Record, error) {
	if err := by.May(fleet.RoleViewer, "see_alerts"); err != nil {
		return Alert{}, nil, err
	}
	a, err := s.o.Store.Alert(ctx, id)
	if err != nil {
		return a, nil, err
	}
	history, err := s.o.Store.AlertRecords(ctx, id)
	return a, history, err
}

// Acknowledge records that the principal handles the alert.
func (s *Service) Acknowledge(ctx context.Context, by fleet.Principal, id uuid.UUID, note string) (Alert, error) {
	if err := by.May(fleet.RoleOperator, "acknowledge_alerts"); err != nil {
		return Alert{}, err
	}
	note, err := fleet.CleanLine("note", note, MaxNote)
	if err != nil {
		return Alert{}, err
	}
	a, err := s.o.Store.Alert(ctx, id)
	if err != nil {
		return Alert{}, err
	}
	c := Change{Alert: a, From: a.State, Event: Acked, At: s.o.Now(), By: by, Note: note}
	to, ok := Next(a.State, Acked)
	if !ok {
		return Alert{}, notOpen(a)
	}
	c.Alert.State, c.Alert.AckedBy, c.Alert.AckedAt, c.Alert.AckedCount = to, by, &c.At, a.Devices
	c.Alert.Note = note
	err = s.o.Store.ChangeAlert(ctx, c)
	if errors.Is(err, fleet.ErrConflict) {
		if now, err := s.o.Store.Alert(ctx, id); err == nil {
			a = now
		}
		return Alert{}, notOpen(a)
	}
	if err != nil {
		return Alert{}, err
	}
	s.changed(ctx, []uuid.UUID{id})
	return c.Alert, nil
}

// Reopen takes back the principal's acknowledgement of an alert.
func (s *Service) Reopen(ctx context.Context, by fleet.Principal, id uuid.UUID) (Alert, error) {
	if err := by.May(fleet.RoleOperator, "acknowledge_alerts"); err != nil {
		return Alert{}, err
	}
	a, err := s.o.Store.Alert(ctx, id)
	if err != nil {
		return Alert{}, err
	}
	c := Change{Alert: a, From: a.State, Event: Unacked, At: s.o.Now(), By: by}
	to, ok := Next(a.State, Unacked)
	if !ok || a.AckedBy.Kind != by.Kind || a.AckedBy.ID != by.ID {
		return Alert{}, fleet.Refuse(fleet.ErrConflict, "alert_not_yours")
	}
	c.Alert.State, c.Alert.Note = to, ""
	err = s.o.Store.ChangeAlert(ctx, c)
	if errors.Is(err, fleet.ErrConflict) {
		return Alert{}, fleet.Refuse(fleet.ErrConflict, "alert_not_yours")
	}
	if err != nil {
		return Alert{}, err
	}
	s.changed(ctx, []uuid.UUID{id})
	return c.Alert, nil
}

func notOpen(a Alert) error {
	if a.State == Ended {
		return fleet.Refuse(fleet.ErrConflict, "alert_not_open.ended")
	}
	return fleet.Refuse(fleet.ErrConflict, "alert_not_open.acknowledged", "actor", a.AckedBy.Name)
}

// Settings returns the settings.
func (s *Service) Settings(ctx context.Context, by fleet.Principal) (Settings, error) {
	if err := by.May(fleet.RoleViewer, "see_alerts"); err != nil {
		return Settings{}, err
	}
	settings, err := s.o.Store.AlertSettings(ctx)
	return settings.Complete(), err
}

// A SettingsChange is a change of the settings. Nil fields and thresholds that it does not
// name stay unchanged.
type SettingsChange struct {
	Thresholds                  map[Kind]Threshold
	OpenAfter, EndAfter, Settle *time.Duration
	Groups                      *[]Group
	Recipients                  *[]string
	MailLang                    *string
	MailLeast                   *Severity
	MailKinds                   *[]Kind
}

// SetSettings changes settings. They apply from the next check on.
func (s *Service) SetSettings(ctx context.Context, by fleet.Principal, c SettingsChange) (Settings, error) {
	if err := by.May(fleet.RoleAdmin, "manage_alerts"); err != nil {
		return Settings{}, err
	}
	settings, err := s.o.Store.AlertSettings(ctx)
	if err != nil {
		return settings, err
	}
	settings = settings.Complete()
	maps.Copy(settings.Thresholds, c.Thresholds)
	for _, d := range []struct{ to, from *time.Duration }{{&settings.OpenAfter, c.OpenAfter},
		{&settings.EndAfter, c.EndAfter}, {&settings.Settle, c.Settle}} {
		if d.from != nil {
			*d.to = *d.from
		}
	}
	if c.Recipients != nil {
		settings.Recipients = slices.Compact(slices.Clone(*c.Recipients))
	}
	if c.Groups != nil {
		settings.Groups = slices.Clone(*c.Groups)
	}
	if c.MailLang != nil {
		settings.MailLang = *c.MailLang
	}
	if c.MailLeast != nil {
		settings.MailLeast = *c.MailLeast
	}
	if c.MailKinds != nil {
		settings.MailKinds = *c.MailKinds
	}
	if err := settings.check(); err != nil {
		return settings, err
	}
	if err := s.checkMail(settings); err != nil {
		return settings, err
	}
	if err := s.o.Store.SaveAlertSettings(ctx, by, settings); err != nil {
		return settings, err
	}
	s.mu.Lock()
	s.settings = settings
	clear(s.looked) // check all conditions soon, so that the new settings take effect
	s.mu.Unlock()
	return settings, nil
}

// changed reloads the alerts that have not ended, and notifies live pages.
func (s *Service) changed(ctx context.Context, ids []uuid.UUID) {
	if open, err := s.o.Store.OpenAlerts(context.WithoutCancel(ctx)); err == nil {
		s.setOpen(open)
	} else {
		s.o.Log.Warn("could not read alerts", "err", err) // the next check reads them
	}
	if s.o.Events == nil {
		return
	}
	for _, id := range ids {
		s.o.Events.Publish(fleet.Event{Kind: fleet.EventAlert, At: s.o.Now(), Subject: id.String()})
	}
}
