package enrolment

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// A Rule lets unknown devices in, or refuses them, without an operator. All of its conditions
// must hold; an empty condition holds for every device. Except for the address, the conditions
// compare claims of the device.
type Rule struct {
	ID       uuid.UUID
	Position int // the first rule that matches decides
	Name     string
	Enabled  bool
	Action   RuleAction

	Boards     []string // in lower case; a trailing * matches any ending
	Networks   []netip.Prefix
	Devices    []fleet.DeviceID // MAC addresses, sorted
	From       *time.Time
	Until      *time.Time
	MaxDevices int             // how many devices it lets in at most; 0 means no limit
	Tags       []string        // set on devices that it lets in
	Transport  fleet.Transport // chosen for devices that it lets in; "" leaves it unchanged

	Accepted  int // devices that it has let in
	CreatedBy string
	CreatedAt time.Time
	UpdatedAt time.Time
}

// RuleAction is what a rule does with a device that matches.
type RuleAction string

const (
	RuleAccept RuleAction = "accept"
	// RuleRefuse keeps a device out: it gets neither credentials nor a code, and
	// is not listed.
	RuleRefuse RuleAction = "refuse"
)

// A RuleAcceptance records that a rule let a device in.
type RuleAcceptance struct {
	ID        uuid.UUID
	Rule      uuid.UUID
	Name      string // of the rule
	Tags      []string
	Transport fleet.Transport // chosen for the device; "" leaves it unchanged
	At        time.Time
}

// RuleActor returns the principal for the acts of a rule.
func RuleActor(a RuleAcceptance) fleet.Principal {
	return fleet.Principal{Kind: fleet.KindSystem, ID: a.Rule.String(), Name: "rule " + a.Name, Role: fleet.RoleAdmin}
}

// Limits of enrolment rules.
const (
	MaxEnrolmentRules = 200
	MaxRuleDevices    = 20_000
	maxRuleBoards     = 100
	maxRuleNetworks   = 200
)

// RuleStore stores enrolment rules, each change with its audit entry.
type RuleStore interface {
	EnrolmentRules(ctx context.Context) ([]Rule, error) // by position
	CreateEnrolmentRule(ctx context.Context, by fleet.Principal, r Rule) error
	UpdateEnrolmentRule(ctx context.Context, by fleet.Principal, r Rule) error
	DeleteEnrolmentRule(ctx context.Context, by fleet.Principal, id uuid.UUID) error
	// OrderEnrolmentRules sets the positions of the rules to the order of ids. moved is the
	// rule that an operator moved.
	OrderEnrolmentRules(ctx context.Context, by fleet.Principal, ids []uuid.UUID, moved uuid.UUID) error
}

// clean normalizes a rule to the form in which it is stored and matched.
func (r *Rule) clean() (err error) {
	if r.Name, err = fleet.CleanLine("name", r.Name, fleet.MaxNameLength); err != nil {
		return err
	}
	if r.Name == "" {
		return fleet.Refuse(fleet.ErrInvalid, "name_missing").At("name")
	}
	if r.Action != RuleAccept && r.Action != RuleRefuse {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_rule_action").At("action")
	}
	switch r.Transport {
	case "", fleet.TransportMQTT, fleet.TransportWebSocket:
	default:
		return fleet.Refuse(fleet.ErrInvalid, "invalid_transport", "value",
			string(r.Transport)).At("transport")
	}
	if r.Tags, err = fleet.CleanTags(r.Tags); err != nil {
		return err
	}
	if err := r.cleanBoards(); err != nil {
		return err
	}
	if len(r.Networks) > maxRuleNetworks {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_networks", "limit", maxRuleNetworks).At("networks")
	}
	for i, p := range r.Networks {
		r.Networks[i] = p.Masked()
	}
	slices.Sort(r.Devices)
	r.Devices = slices.Compact(r.Devices)
	if len(r.Devices) > MaxRuleDevices {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_devices.rule", "n", len(r.Devices),
			"max", MaxRuleDevices).At("devices")
	}
	if r.From != nil && r.Until != nil && !r.From.Before(*r.Until) {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_window.order").At("until")
	}
	if r.MaxDevices < 0 || r.MaxDevices > 1_000_000 {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_max_devices.rule", "max", 1000000).At("max_devices")
	}
	if r.Action == RuleAccept && len(r.Boards)+len(r.Networks)+len(r.Devices) == 0 && r.Until == nil {
		return fleet.Refuse(fleet.ErrInvalid, "rule_too_wide").At("action")
	}
	return nil
}

func (r *Rule) cleanBoards() error {
	var boards []string
	for _, b := range r.Boards {
		if b = strings.ToLower(strings.TrimSpace(b)); b == "" {
			continue
		}
		if _, err := fleet.CleanLine("board", b, fleet.MaxNameLength); err != nil ||
			strings.Contains(strings.TrimSuffix(b, "*"), "*") {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_board.rule", "value", b).At("boards")
		}
		boards = append(boards, b)
	}
	slices.Sort(boards)
	if r.Boards = slices.Compact(boards); len(r.Boards) > maxRuleBoards {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_boards", "limit", maxRuleBoards).At("boards")
	}
	return nil
}

// ParseNetworks parses networks as people write them: 10.1.0.0/16 or a single address,
// separated by blanks or commas.
func ParseNetworks(text string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n,;，", r) }) {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			var ip netip.Addr
			if ip, err = netip.ParseAddr(s); err == nil && ip.Zone() == "" {
				p, err = ip.Prefix(ip.BitLen())
			}
		}
		if err != nil || !p.IsValid() || p.Addr().Is4In6() {
			s = fleet.CleanText(s, 60)
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_network", "value", s).At("networks")
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// listHeaders are the names of the address column, the surest name first.
var listHeaders = []string{"mac", "macaddress", "macaddr", "deviceid", "device", "address", "id"}

// ParseDeviceList reads MAC addresses from lines of text or CSV. In CSV it uses the first
// column, or the one that the first line calls "mac". It skips empty lines and everything after
// #. An error names the first invalid line.
func ParseDeviceList(text string) ([]fleet.DeviceID, error) {
	var all []fleet.DeviceID
	column, first := 0, true
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		cells := strings.FieldsFunc(line+" ", func(r rune) bool { return r == ',' || r == ';' || r == '\t' })
		if first {
			first = false
			if at := headerColumn(cells); at >= 0 {
				column = at
				continue
			}
		}
		cell := ""
		if column < len(cells) {
			cell = strings.Trim(strings.TrimSpace(cells[column]), `"'`)
		}
		id, err := fleet.ParseDeviceID(cell)
		if err != nil || id.MAC() == "" {
			return nil, InvalidListLine(number, cell)
		}
		if all = append(all, id); len(all) > 2*MaxRuleDevices {
			return nil, fleet.Refuse(fleet.ErrInvalid, "too_many_devices.rule", "n", len(all),
				"max", MaxRuleDevices).At("devices")
		}
	}
	return all, nil
}

// InvalidListLine returns the error for a line of a list, counted from 1.
func InvalidListLine(line int, value string) *fleet.Error {
	value = fleet.CleanText(value, 60)
	return fleet.Refuse(fleet.ErrInvalid, "invalid_device_list", "line", line, "value", value).At("devices")
}

// headerColumn returns the column of the addresses in a first line, or -1 if the line is not a header.
func headerColumn(cells []string) int {
	plain := strings.NewReplacer(" ", "", "_", "", "-", "", `"`, "")
	for _, name := range listHeaders {
		if at := slices.IndexFunc(cells, func(c string) bool { return plain.Replace(strings.ToLower(c)) == name }); at >= 0 {
			return at
		}
	}
	return -1
}

// Matches reports whether the conditions of the rule hold for a poll, even if the rule is
// disabled or has let in its maximum.
func (r *Rule) Matches(p BootPoll) bool {
	switch {
	case r.From != nil && p.At.Before(*r.From), r.Until != nil && !p.At.Before(*r.Until):
		return false
	case len(r.Boards) > 0 && !slices.ContainsFunc(r.Boards, boardIs(p.Board)):
		return false
	case len(r.Networks) > 0 && !inNetworks(r.Networks, p.RemoteAddr):
		return false
	}
	if len(r.Devices) == 0 {
		return true
	}
	_, listed := slices.BinarySearch(r.Devices, p.Device)
	return listed
}

func boardIs(board string) func(string) bool {
	board = strings.ToLower(board)
	return func(want string) bool {
		prefix, open := strings.CutSuffix(want, "*")
		return board == want || open && strings.HasPrefix(board, prefix)
	}
}

func inNetworks(networks []netip.Prefix, addr string) bool {
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return false
	}
	ip = ip.Unmap().WithZone("")
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// Detail returns the part of a rule that an audit entry contains. A long list is replaced by
// its length.
func (r Rule) Detail() map[string]any {
	d := map[string]any{"name": r.Name, "enabled": r.Enabled, "action": string(r.Action), "position": r.Position}
	if len(r.Boards) > 0 {
		d["boards"] = r.Boards
	}
	if len(r.Networks) > 0 {
		d["networks"] = r.Networks
	}
	if len(r.Devices) > 0 {
		d["devices"] = len(r.Devices)
	}
	if r.From != nil {
		d["from"] = r.From.UTC()
	}
	if r.Until != nil {
		d["until"] = r.Until.UTC()
	}
	if r.MaxDevices > 0 {
		d["max_devices"] = r.MaxDevices
	}
	if len(r.Tags) > 0 {
		d["tags"] = r.Tags
	}
	if r.Transport != "" {
		d["transport"] = r.Transport
	}
	return d
}
