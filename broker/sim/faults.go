package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A FaultKind names one way in which a device misbehaves.
type FaultKind string

// Faults in normal operation.
const (
	FaultSilent    FaultKind = "silent"    // runs a tool call and never answers it
	FaultSlow      FaultKind = "slow"      // takes =2s longer for each call
	FaultDrop      FaultKind = "drop"      // breaks the connection when a call arrives, and does not run it
	FaultBadJSON   FaultKind = "badjson"   // its SSID contains a quote, which the firmware does not escape
	FaultFlap      FaultKind = "flap"      // loses its connection every =30s
	FaultNoConnect FaultKind = "noconnect" // polls, but never opens MQTT
	FaultError     FaultKind = "error"     // answers each tool call with an error
)

// Faults in an upgrade.
const (
	FaultSilentAccept    FaultKind = "silent-accept"     // accepts the order and does nothing: no GET, no answer
	FaultNoGet           FaultKind = "no-get"            // the download never starts; the late "true" is sent
	FaultCut             FaultKind = "cut"               // the download ends after =50 percent
	FaultWrongBuild      FaultKind = "wrong-build"       // reports a different elf_sha256 than the image has
	FaultRollback        FaultKind = "rollback"          // the new image resets before its first poll
	FaultLateTrue        FaultKind = "late-true"         // refuses the image after the whole download
	FaultPollWithoutMQTT FaultKind = "poll-without-mqtt" // the new build polls but never opens MQTT
	FaultMQTTWithoutPoll FaultKind = "mqtt-without-poll" // the new build opens MQTT but its polls are lost
)

// A Fault gives a share of the fleet a kind of misbehaviour. The seed alone determines which
// devices have it.
type Fault struct {
	Kind    FaultKind
	Rate    float64       // share of the devices, 0 to 1
	Delay   time.Duration // of slow (2s) and flap (30s)
	Percent float64       // of cut (50)
}

// faultDefaults contains every kind, in the order of the bits of a faultSet.
var faultDefaults = []Fault{
	{Kind: FaultSilent}, {Kind: FaultSlow, Delay: 2 * time.Second}, {Kind: FaultDrop}, {Kind: FaultBadJSON},
	{Kind: FaultFlap, Delay: 30 * time.Second}, {Kind: FaultNoConnect}, {Kind: FaultError},
	{Kind: FaultSilentAccept}, {Kind: FaultNoGet}, {Kind: FaultCut, Percent: 50}, {Kind: FaultWrongBuild},
	{Kind: FaultRollback}, {Kind: FaultLateTrue}, {Kind: FaultPollWithoutMQTT}, {Kind: FaultMQTTWithoutPoll},
}

// FaultNames lists the kinds that [ParseFaults] accepts.
func FaultNames() []string {
	var names []string
	for _, f := range faultDefaults {
		names = append(names, string(f.Kind))
	}
	return names
}

// ParseFaults parses a list such as "silent:2%,slow=500ms:5%,cut=30:1%".
//
// Each item is name[=value][:rate]. The value is a duration for slow and flap and a percentage
// for cut; other faults have none. The rate is the share of devices, as 2% or 0.02; without a
// rate every device has the fault.
func ParseFaults(s string) ([]Fault, error) {
	var faults []Fault
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		f, err := parseFault(item)
		if err != nil {
			return nil, fmt.Errorf("fault %q: %w", item, err)
		}
		faults = append(faults, f)
	}
	return faults, checkFaults(faults)
}

func parseFault(item string) (Fault, error) {
	head, rate, hasRate := strings.Cut(item, ":")
	name, val, hasValue := strings.Cut(head, "=")
	i := faultIndex(FaultKind(name))
	if i < 0 {
		return Fault{}, fmt.Errorf("unknown name; known are %s", strings.Join(FaultNames(), ", "))
	}
	f := faultDefaults[i]
	f.Rate = 1
	var err error
	if hasValue {
		if err = f.setValue(val); err != nil {
			return Fault{}, err
		}
	}
	if hasRate {
		f.Rate, err = parseRate(rate)
	}
	return f, err
}

func (f *Fault) setValue(text string) (err error) {
	switch {
	case f.Delay > 0:
		if f.Delay, err = time.ParseDuration(text); err != nil || f.Delay <= 0 {
			return fmt.Errorf("value %q: want a time above zero such as 2s", text)
		}
	case f.Percent > 0:
		if f.Percent, err = strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64); err != nil ||
			!(f.Percent >= 0 && f.Percent < 100) {
			return fmt.Errorf("value %q: want a percentage below 100 such as 50", text)
		}
	default:
		return fmt.Errorf("takes no value")
	}
	return nil
}

func parseRate(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	rate, err := strconv.ParseFloat(number, 64)
	if percent {
		rate /= 100
	}
	if err != nil || !(rate >= 0 && rate <= 1) {
		return 0, fmt.Errorf("rate %q: want 0%% to 100%%, or 0 to 1", text)
	}
	return rate, nil
}

func checkFaults(faults []Fault) error {
	var seen faultSet
	for _, f := range faults {
		i := faultIndex(f.Kind)
		if i < 0 {
			return fmt.Errorf("fault %q: unknown name; known are %s", f.Kind, strings.Join(FaultNames(), ", "))
		}
		if seen&(1<<i) != 0 {
			return fmt.Errorf("fault %s stands twice; give it once, with one rate", f.Kind)
		}
		seen |= 1 << i
	}
	return nil
}

func faultIndex(kind FaultKind) int {
	return slices.IndexFunc(faultDefaults, func(f Fault) bool { return f.Kind == kind })
}

// A faultSet is the faults of one device, a bit for each kind.
type faultSet uint32

func (s faultSet) has(kind FaultKind) bool { return s != 0 && s&(1<<faultIndex(kind)) != 0 }

// faultsOf draws the faults of the device with this address.
func faultsOf(faults []Fault, seed uint64, mac string) faultSet {
	var s faultSet
	for _, f := range faults {
		if chance(seed, "fault", string(f.Kind), mac) < f.Rate {
			s |= 1 << faultIndex(f.Kind)
		}
	}
	return s
}

// Faults lists the device's faults, in no particular order.
func (d *Device) Faults() []FaultKind {
	var kinds []FaultKind
	for i, f := range faultDefaults {
		if d.faults&(1<<i) != 0 {
			kinds = append(kinds, f.Kind)
		}
	}
	return kinds
}
