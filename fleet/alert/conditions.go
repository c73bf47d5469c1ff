package alert

import (
	"maps"
	"slices"
	"time"

	"fleetd/fleet"
)

// A Kind names a condition. Codes are stable.
type Kind string

const (
	OnlineDropped   Kind = "online_dropped"       // the share of devices online fell by Percent points within Span
	Flapping        Kind = "flapping"             // a device reconnected Count times within Span; bad if Percent of the fleet did
	DevicesOffline  Kind = "devices_offline"      // Count devices have been offline for longer than Span; bad if Percent of the fleet
	GroupOffline    Kind = "group_offline"        // a share of a Group has been offline for some time
	CrashLoop       Kind = "crash_loop"           // a device restarted Count times within Span, or is in safe mode
	RolledBack      Kind = "rolled_back"          // Count devices fell back from an update within Span
	CampaignStopped Kind = "campaign_stopped"     // a rule or fleetd paused it, or aborted it within Span
	CampaignStuck   Kind = "campaign_stuck"       // it runs, but no deployment has progressed for Span
	ToolsChanged    Kind = "tools_changed"        // the tools of Count devices changed with the same firmware within Span
	CertificateEnds Kind = "certificate_expiring" // a certificate expires within Span
	DiskLow         Kind = "disk_low"             // less than Percent of a disk is free
	UpstreamDown    Kind = "upstream_down"        // a voice server has been unreachable for Span
	PluginCrashing  Kind = "plugin_crashing"      // a plug-in ended often or is invalid, and has not run for Span
	RecordRefused   Kind = "record_not_delivered" // a receiver of the record has failed for Span
	ToolQuarantined Kind = "tool_quarantined"     // tools of a program wait in quarantine for an administrator
	NoStandby       Kind = "no_standby"           // no core of the cluster has stood by for Span
	EdgeGone        Kind = "edge_gone"            // an edge of the cluster is gone
	VersionsDiffer  Kind = "versions_differ"      // nodes of the cluster have run different versions for Span
)

// A Threshold is the limit at which a condition holds. The kinds above describe each field; a
// condition uses the fields that its [Condition] has limits for.
type Threshold struct {
	Enabled bool          `json:"enabled"`
	Percent int           `json:"percent,omitempty"`
	Span    time.Duration `json:"span,omitempty"`
	Count   int           `json:"count,omitempty"`
}

// A Condition is one row of the table.
type Condition struct {
	Kind     Kind
	Every    time.Duration // how often it is checked
	AtOnce   bool          // it does not fluctuate, so its alert opens when it is first found
	Presence bool          // opens no alert until devices had time to reconnect after a start
	BadFrom  int           // number of devices; 0 if severity does not depend on it
	Params   []string      // names of the parameters of its text
	Default  Threshold
	// Least and Most limit the settings; a field whose Most is 0 is not used.
	Least, Most Threshold
	look        look
	// due reports whether the condition must be checked before Every has passed; nil means
	// never. It is called each second, so it uses only memory.
	due func(s *Service, now time.Time) bool
}

const (
	day  = 24 * time.Hour
	many = 1_000_000

	maxReconnects = 100
)

// lookEvery is how often most conditions are checked. slowly is for conditions about hours,
// which read more.
const (
	lookEvery = 30 * time.Second
	slowly    = 5 * time.Minute
)

// Conditions is the table of all conditions, in the order of the settings page.
var Conditions = []Condition{
	{Kind: OnlineDropped, Every: lookEvery, Presence: true, due: (*Service).presenceDue,
		Params:  []string{"n", "silent", "all", "before", "now", "lost", "missing", "back", "from_time", "to_time"},
		Default: Threshold{Percent: 20, Span: 15 * time.Minute, Count: 3},
		Least:   Threshold{Percent: 1, Span: 2 * time.Minute, Count: 1},
		Most:    Threshold{Percent: 100, Span: day, Count: many}, look: (*Service).onlineDropped},
	{Kind: Flapping, Every: lookEvery, AtOnce: true, due: (*Service).flappingDue,
		Params:  []string{"n", "times", "span_ms", "from_time", "to_time"},
		Default: Threshold{Percent: 5, Span: 5 * time.Minute, Count: 4},
		Least:   Threshold{Percent: 1, Span: 30 * time.Second, Count: 2},
		Most:    Threshold{Percent: 100, Span: day, Count: maxReconnects}, look: (*Service).flapping},
	{Kind: DevicesOffline, Every: lookEvery, Presence: true, Params: []string{"n", "span_ms"},
		Default: Threshold{Percent: 50, Span: day, Count: 1},
		Least:   Threshold{Percent: 1, Span: time.Minute, Count: 1},
		Most:    Threshold{Percent: 100, Span: 90 * day, Count: many}, look: (*Service).devicesOffline},
	{Kind: GroupOffline, Every: lookEvery, Presence: true, Params: []string{"name", "n", "all", "percent", "span_ms"},
		look: (*Service).groupsOffline},
	{Kind: CrashLoop, Every: lookEvery, BadFrom: 5, Params: []string{"n", "restarts", "span_ms"},
		Default: Threshold{Span: time.Hour, Count: 5},
		Least:   Threshold{Span: time.Minute, Count: 2}, Most: Threshold{Span: day, Count: 100},
		look: (*Service).crashLoops},
	{Kind: RolledBack, Every: lookEvery, AtOnce: true, BadFrom: 5, Params: []string{"n", "span_ms"},
		Default: Threshold{Span: day, Count: 1},
		Least:   Threshold{Span: time.Hour, Count: 1}, Most: Threshold{Span: 30 * day, Count: many},
		look: (*Service).rollbacks},
	{Kind: CampaignStopped, Every: lookEvery, AtOnce: true, Params: []string{"name"},
		Default: Threshold{Span: day}, Least: Threshold{Span: time.Minute}, Most: Threshold{Span: 30 * day},
		look: (*Service).campaignsStopped},
	{Kind: CampaignStuck, Every: slowly, AtOnce: true, Params: []string{"name", "n", "span_ms"},
		Default: Threshold{Span: 6 * time.Hour}, Least: Threshold{Span: 5 * time.Minute}, Most: Threshold{Span: 30 * day},
		look: (*Service).campaignsStuck},
	{Kind: ToolsChanged, Every: lookEvery, AtOnce: true, Params: []string{"n", "span_ms"},
		Default: Threshold{Span: day, Count: 1},
		Least:   Threshold{Span: time.Minute, Count: 1}, Most: Threshold{Span: 30 * day, Count: many},
		look: (*Service).toolsChanged},
	{Kind: CertificateEnds, Every: slowly, AtOnce: true, Params: []string{"name", "ends_at"},
		Default: Threshold{Span: 21 * day}, Least: Threshold{Span: time.Hour}, Most: Threshold{Span: 365 * day},
		look: (*Service).certificates},
	{Kind: DiskLow, Every: lookEvery, Params: []string{"name", "free_bytes", "percent"},
		Default: Threshold{Percent: 10}, Least: Threshold{Percent: 1}, Most: Threshold{Percent: 90},
		look: (*Service).disks},
	{Kind: UpstreamDown, Every: lookEvery, Params: []string{"name"},
		Default: Threshold{Span: time.Minute}, Least: Threshold{Span: time.Second}, Most: Threshold{Span: day},
		look: (*Service).upstreams},
	{Kind: PluginCrashing, Every: lookEvery, Params: []string{"name", "since_at", "why"},
		Default: Threshold{Span: time.Minute}, Least: Threshold{Span: time.Second}, Most: Threshold{Span: day},
		look: (*Service).plugins},
	{Kind: RecordRefused, Every: lookEvery, Params: []string{"name", "since_at"},
		Default: Threshold{Span: 10 * time.Minute}, Least: Threshold{Span: time.Second}, Most: Threshold{Span: 30 * day},
		look: (*Service).receivers},
	{Kind: ToolQuarantined, Every: lookEvery, AtOnce: true, Params: []string{"name", "n", "tool"},
		look: (*Service).quarantinedTools},
	{Kind: NoStandby, Every: lookEvery, AtOnce: true, Params: []string{"since_at"},
		Default: Threshold{Span: time.Minute}, Least: Threshold{Span: time.Second}, Most: Threshold{Span: day},
		look: (*Service).noStandby},
	{Kind: EdgeGone, Every: lookEvery, AtOnce: true, Params: []string{"name", "since_at"}, look: (*Service).edgesGone},
	{Kind: VersionsDiffer, Every: lookEvery, AtOnce: true, Params: []string{"since_at", "versions"},
		Default: Threshold{Span: 10 * time.Minute}, Least: Threshold{Span: time.Second}, Most: Threshold{Span: 30 * day},
		look: (*Service).versionsDiffer},
}

// Kinds lists every kind, in the order of the table.
var Kinds = func() (all []Kind) {
	for _, c := range Conditions {
		all = append(all, c.Kind)
	}
	return all
}()

func conditionOf(k Kind) (Condition, bool) {
	i := slices.IndexFunc(Conditions, func(c Condition) bool { return c.Kind == k })
	if i < 0 {
		return Condition{}, false
	}
	return Conditions[i], true
}

// Settings are the thresholds and times of alerts.
type Settings struct {
	Thresholds map[Kind]Threshold `json:"thresholds"`
	OpenAfter  time.Duration      `json:"open_after"`           // how long a condition must hold before its alert opens
	EndAfter   time.Duration      `json:"end_after"`            // how long it must not hold before its alert ends
	Settle     time.Duration      `json:"settle"`               // time for devices to reconnect after fleetd has started
	Recipients []string           `json:"recipients"`           // of mails
	MailLang   string             `json:"mail_lang"`            // one of MailLangs
	MailLeast  Severity           `json:"mail_least,omitempty"` // lowest severity in mails; "" means Warning
	MailKinds  []Kind             `json:"mail_kinds,omitempty"` // kinds in mails; none means all
	Groups     []Group            `json:"groups,omitempty"`
}

// Limits of the settings.
const (
	maxWait = time.Hour
	MaxNote = 500 // bytes of an acknowledgement's note
)

// DefaultSettings returns the settings of a fleetd on which nothing was changed.
func DefaultSettings() Settings {
	s := Settings{Thresholds: make(map[Kind]Threshold), OpenAfter: time.Minute, EndAfter: 5 * time.Minute,
		Settle: 5 * time.Minute, MailLang: MailLangs[0]}
	for _, c := range Conditions {
		s.Thresholds[c.Kind] = enabled(c.Default)
	}
	return s
}

func enabled(t Threshold) Threshold {
	t.Enabled = true
	return t
}

// Complete adds the defaults of conditions that the settings lack, for example those of a
// newer version, and drops unknown conditions.
func (s Settings) Complete() Settings {
	def := DefaultSettings()
	maps.DeleteFunc(s.Thresholds, func(k Kind, _ Threshold) bool { _, ok := def.Thresholds[k]; return !ok })
	for k, t := range s.Thresholds {
		if t.Percent == 0 { // older versions had no share for some conditions
			t.Percent = def.Thresholds[k].Percent
		}
		def.Thresholds[k] = t
	}
	s.Thresholds = def.Thresholds
	return s
}

// check refuses settings that are out of range.
func (s Settings) check() error {
	for _, k := range slices.Sorted(maps.Keys(s.Thresholds)) {
		c, ok := conditionOf(k)
		if !ok {
			return unknownKind(k)
		}
		t := s.Thresholds[k]
		if c.Most.Percent == 0 && t.Percent != 0 || t.Percent < c.Least.Percent || t.Percent > c.Most.Percent {
			return outOfBounds(k, "percent", c.Least.Percent, c.Most.Percent)
		}
		if c.Most.Count == 0 && t.Count != 0 || t.Count < c.Least.Count || t.Count > c.Most.Count {
			return outOfBounds(k, "count", c.Least.Count, c.Most.Count)
		}
		if t.Span < c.Least.Span || t.Span > c.Most.Span || t.Span%time.Second != 0 {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_threshold.span", "kind", k, "least_ms", c.Least.Span,
				"limit_ms", c.Most.Span).At("span_ms")
		}
	}
	for _, w := range []struct {
		field string
		d     time.Duration
	}{{"open_after_ms", s.OpenAfter}, {"end_after_ms", s.EndAfter}, {"settle_ms", s.Settle}} {
		if w.d < 0 || w.d > maxWait || w.d%time.Second != 0 {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_alert_wait", "limit_ms", maxWait).At(w.field)
		}
	}
	return checkGroups(s.Groups)
}

func outOfBounds(k Kind, field string, least, most int) error {
	return fleet.Refuse(fleet.ErrInvalid, "invalid_threshold", "field", field, "kind", k, "least", least, "limit", most).At(field)
}
