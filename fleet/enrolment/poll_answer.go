package enrolment

import (
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"fleetd/fleet"
)

// PollAnswerOptions are the values that all answers to boot polls share.
type PollAnswerOptions struct {
	Endpoint  string         // host:port of the broker as devices reach it; see [CheckEndpoint]
	Location  *time.Location // the devices' time zone: their clocks show local time. Default: UTC
	Keepalive time.Duration  // of MQTT connections. Default: 60s
	// PublicURL is the address at which devices reach the WebSocket. With "" no device uses one.
	PublicURL string
}

// PollAnswers builds the bodies of answers to boot polls. Some answers crash a stock device,
// which then starts, polls and crashes again in a loop (protocol 1.6). Therefore PollAnswers
// returns only bodies that pass [CheckPollAnswer].
type PollAnswers struct {
	endpoint  string
	socketURL string
	location  *time.Location
	keepalive int
}

// NewPollAnswers returns PollAnswers with the given options. It rejects an endpoint that
// devices cannot handle.
func NewPollAnswers(o PollAnswerOptions) (*PollAnswers, error) {
	if err := CheckEndpoint(o.Endpoint); err != nil {
		return nil, err
	}
	if o.Location == nil {
		o.Location = time.UTC
	}
	if o.Keepalive == 0 {
		o.Keepalive = time.Minute
	}
	seconds := int(o.Keepalive / time.Second)
	if seconds < 10 || seconds > 3600 {
		return nil, fmt.Errorf("invalid keepalive %v for devices; use 10s to 1h", o.Keepalive)
	}
	a := &PollAnswers{endpoint: o.Endpoint, location: o.Location, keepalive: seconds}
	if scheme, rest, ok := strings.Cut(strings.TrimSuffix(o.PublicURL, "/"), "://"); ok {
		a.socketURL = map[string]string{"http": "ws://", "https": "wss://"}[scheme] + rest + WebSocketPath
	}
	return a, nil
}

// WebSocketPath is the path at which devices open their WebSocket, the same as that of voice servers.
const WebSocketPath = "/xiaozhi/v1/"

// socketVersion is the version of the binary messages over a WebSocket. Version 2 has time
// stamps, which a voice server needs to cancel echoes.
const socketVersion = 2

var hostPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

// CheckEndpoint checks a broker address for devices. Devices cut it at the first colon and read
// a number after it, so a scheme, a path or an IPv6 address makes them crash.
func CheckEndpoint(endpoint string) error {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil || !hostPattern.MatchString(host) {
		return fmt.Errorf("invalid broker address %.80q for devices: use host:port, with a name or an IPv4 address, such as fleet.example.org:1883", endpoint)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strings.HasPrefix(port, "+") {
		return fmt.Errorf("the port of the broker address %.80q must be a number from 1 to 65535", endpoint)
	}
	return nil
}

type pollAnswerBody struct {
	Activation *activationSection `json:"activation,omitempty"`
	MQTT       *mqttSection       `json:"mqtt,omitempty"`
	WebSocket  *webSocketSection  `json:"websocket,omitempty"`
	ServerTime serverTimeSection  `json:"server_time"`
	Firmware   *firmwareSection   `json:"firmware,omitempty"`
	DeviceKey  *deviceKeySection  `json:"device_key,omitempty"`
}

type activationSection struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Challenge string `json:"challenge"`
	TimeoutMS int    `json:"timeout_ms"`
}

// The keys of an mqttSection become NVS keys on the device: 15 characters at most.
type mqttSection struct {
	Endpoint       string `json:"endpoint"`
	ClientID       string `json:"client_id"`
	Username       string `json:"username"`
	Password       string `json:"password"`
	PublishTopic   string `json:"publish_topic"`
	SubscribeTopic string `json:"subscribe_topic"` // old firmware needs the key
	Keepalive      int    `json:"keepalive"`
	SignConnect    int    `json:"sign_connect,omitempty"` // 1: the password carries a proof; stock devices get none
}

// A webSocketSection counts only without an mqttSection.
type webSocketSection struct {
	URL     string `json:"url"`
	Token   string `json:"token"`
	Version int    `json:"version"`
}

// A deviceKeySection makes the included firmware sign the challenge and poll again.
type deviceKeySection struct {
	Challenge string `json:"challenge"`
}

type serverTimeSection struct {
	Timestamp      int64 `json:"timestamp"`       // Unix milliseconds
	TimezoneOffset int   `json:"timezone_offset"` // minutes
}

// A firmwareSection must be omitted unless an upgrade is due: a device compares every version
// that it receives and installs a newer one.
type firmwareSection struct {
	Version string `json:"version"`
	URL     string `json:"url"`
	Force   int    `json:"force"` // a number: true is ignored
	// Stock firmware reads members by name, so it ignores these.
	SHA256    string `json:"sha256,omitempty"`
	Size      int64  `json:"size,omitempty"`
	Job       string `json:"job,omitempty"`
	Manifest  string `json:"manifest,omitempty"`
	Signature string `json:"signature,omitempty"`
}

// Body returns the JSON to send at the given time. On error it still returns a body, without the offer
// or with the time alone: a known device must be answered with 200, or it rolls back a new image.
func (o *PollAnswers) Body(a PollAnswer, now time.Time) ([]byte, error) {
	body := o.body(a, now)
	text, err := checked(body)
	if err != nil && body.Firmware != nil {
		body.Firmware = nil
		if text, rest := checked(body); rest == nil {
			return text, fmt.Errorf("no firmware offered: %w", err)
		}
	}
	if err != nil {
		text, _ = json.Marshal(pollAnswerBody{ServerTime: body.ServerTime}) // numbers only
	}
	return text, err
}

func checked(body pollAnswerBody) ([]byte, error) {
	text, err := json.Marshal(body)
	if err == nil {
		err = CheckPollAnswer(text)
	}
	return text, err
}

func (o *PollAnswers) body(a PollAnswer, now time.Time) pollAnswerBody {
	body := pollAnswerBody{ServerTime: o.serverTime(now)}
	if act := a.Activation; act != nil {
		body.Activation = &activationSection{act.Code, act.Message, act.Challenge, 30_000}
	}
	switch c := a.Session; {
	case c == nil:
	case a.Transport == fleet.TransportWebSocket && o.socketURL != "":
		body.WebSocket = &webSocketSection{o.socketURL, c.Token, socketVersion}
	default:
		body.MQTT = &mqttSection{Endpoint: o.endpoint, ClientID: c.ClientID, Username: c.Username, Password: c.Password,
			PublishTopic: c.PublishTopic, SubscribeTopic: "null", Keepalive: o.keepalive}
		if c.WithProof {
			body.MQTT.SignConnect = 1
		}
	}
	if a.KeyChallenge != "" {
		body.DeviceKey = &deviceKeySection{a.KeyChallenge}
	}
	if f := a.Offer; f != nil && a.Session != nil {
		body.Firmware = &firmwareSection{Version: f.Version, URL: f.URL, SHA256: f.SHA256, Size: f.Size, Job: f.Job,
			Manifest: f.Manifest, Signature: f.Signature}
		if f.Force {
			body.Firmware.Force = 1
		}
	}
	return body
}

func (o *PollAnswers) serverTime(now time.Time) serverTimeSection {
	_, seconds := now.In(o.location).Zone()
	return serverTimeSection{now.UnixMilli(), seconds / 60}
}
