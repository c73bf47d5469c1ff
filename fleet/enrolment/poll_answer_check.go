package enrolment

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"fleetd/fleet"
)

// Limits of an answer to a boot poll (protocol 1.6 and 2).
const (
	maxPollAnswer    = 6 << 10 // the device dead-locks at 8 KiB
	maxSettingKey    = 15      // NVS
	maxSettingsBytes = 3000    // NVS: 4,000 per value, 16 KiB for everything on the device
	maxConnectBytes  = 900
)

var (
	activationCode = regexp.MustCompile(`^[0-9]{1,10}$`)
)

// A member is one key of a JSON object with its value. If two keys are equal in any case, the
// device's parser uses the first and Go's the last; this file reads objects like the device.
type member struct {
	key   string
	value json.RawMessage
}

// CheckPollAnswer reports the first part of an answer to a boot poll that would crash a stock
// device or prevent it from connecting, by the rules of protocol section 1.6.
func CheckPollAnswer(body []byte) error {
	if len(body) > maxPollAnswer {
		return fmt.Errorf("%d bytes, at most %d are safe", len(body), maxPollAnswer)
	}
	sections, err := objectMembers(body)
	if err != nil {
		return err
	}
	for _, s := range sections {
		check := sectionChecks[s.key]
		if check == nil {
			return fmt.Errorf("unknown section %q", s.key)
		}
		members, err := objectMembers(s.value)
		if err == nil {
			err = check(members)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.key, err)
		}
	}
	return nil
}

var sectionChecks = map[string]func([]member) error{
	"activation":  checkActivation,
	"mqtt":        checkMQTT,
	"websocket":   checkWebsocket,
	"server_time": checkServerTime,
	"firmware":    checkFirmware,
	"device_key":  func([]member) error { return nil }, // stock devices ignore it
}

// checkActivation requires code and challenge together: with a code alone the device never
// requests /activate and loops slowly.
func checkActivation(ms []member) error {
	if !activationCode.MatchString(memberText(ms, "code")) {
		return errors.New("the code must be digits: only they have sounds")
	}
	if memberText(ms, "challenge") == "" {
		return errors.New("a code without a challenge")
	}
	if memberText(ms, "message") == "" {
		return errors.New("no message to show")
	}
	return nil
}

func checkMQTT(ms []member) error {
	if err := checkSettings(ms); err != nil {
		return err
	}
	if err := CheckEndpoint(memberText(ms, "endpoint")); err != nil {
		return err
	}
	if memberText(ms, "publish_topic") == "" {
		return errors.New("no publish_topic: the device could send nothing")
	}
	if n := len(memberText(ms, "client_id")) + len(memberText(ms, "username")) +
		len(memberText(ms, "password")); n >= maxConnectBytes {
		return fmt.Errorf("credentials of %d bytes do not fit the device's CONNECT", n)
	}
	if raw := memberValue(ms, "keepalive"); raw != nil {
		if n, err := strconv.Atoi(string(raw)); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("keepalive %s is not a number of seconds", raw)
		}
	}
	return nil
}

func checkWebsocket(ms []member) error {
	if err := checkSettings(ms); err != nil {
		return err
	}
	url := memberText(ms, "url")
	if !strings.HasPrefix(url, "ws://") && !strings.HasPrefix(url, "wss://") {
		return fmt.Errorf("url %.80q is not a WebSocket address", url)
	}
	return nil
}

// checkSettings checks the settings, which the device copies to its flash key by key.
func checkSettings(ms []member) error {
	total := 0
	for _, m := range ms {
		if len(m.key) == 0 || len(m.key) > maxSettingKey {
			return fmt.Errorf("key %q has %d characters, flash keys have 1 to %d", m.key, len(m.key), maxSettingKey)
		}
		total += len(m.value)
		switch m.value[0] {
		case '"':
			if s := memberText(ms, m.key); fleet.CleanText(s, len(s)) != s {
				return fmt.Errorf("%s holds control characters", m.key)
			}
		default:
			if _, err := strconv.ParseInt(string(m.value), 10, 32); err != nil {
				return fmt.Errorf("%s is neither text nor a number", m.key)
			}
		}
	}
	if total > maxSettingsBytes {
		return fmt.Errorf("%d bytes of settings fill the device's flash", total)
	}
	return nil
}

func checkServerTime(ms []member) error {
	for _, m := range ms {
		if _, err := strconv.ParseInt(string(m.value), 10, 64); err != nil {
			return fmt.Errorf("%s is not a number", m.key)
		}
	}
	return nil
}

func checkFirmware(ms []member) error {
	if v := memberText(ms, "version"); !fleet.ComparableVersion(v) {
		return fmt.Errorf("version %.80q makes the device crash: it must be numbers and dots", v)
	}
	url := memberText(ms, "url")
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return fmt.Errorf("url %.80q is not an HTTP address", url)
	}
	if f := memberValue(ms, "force"); f != nil && string(f) != "0" && string(f) != "1" {
		return fmt.Errorf("force is %s: only the number 1 is understood", f)
	}
	return nil
}

// objectMembers reads a JSON object and rejects trailing data.
func objectMembers(raw []byte) ([]member, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	var ms []member
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		m := member{key: key.(string)} // an object's keys are strings, or Token fails
		if err := d.Decode(&m.value); err != nil {
			return nil, err
		}
		for _, other := range ms {
			if strings.EqualFold(other.key, m.key) {
				return nil, fmt.Errorf("duplicate key %q: parsers differ in which one they use", m.key)
			}
		}
		ms = append(ms, m)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	return ms, nil
}

func memberValue(ms []member, key string) json.RawMessage {
	for _, m := range ms {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// memberText returns the value of a member if it is a string, or "".
func memberText(ms []member, key string) string {
	var s string
	if json.Unmarshal(memberValue(ms, key), &s) != nil {
		return ""
	}
	return s
}
