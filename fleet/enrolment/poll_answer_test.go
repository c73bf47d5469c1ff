package enrolment_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

func TestCheckPollAnswerOnVectors(t *testing.T) {
	var vectors struct {
		Responses []struct {
			Name, Body string
			Expect     struct {
				MustNotSend bool `json:"backend_must_not_send"`
			}
		}
	}
	text, err := os.ReadFile("testdata/ota_check.json")
	if err == nil {
		err = json.Unmarshal(text, &vectors)
	}
	if err != nil || len(vectors.Responses) < 8 {
		t.Fatalf("%d responses: %v", len(vectors.Responses), err)
	}
	for _, r := range vectors.Responses {
		err := enrolment.CheckPollAnswer([]byte(r.Body))
		if (err != nil) != r.Expect.MustNotSend {
			t.Errorf("%s: error %v, must not be sent: %v", r.Name, err, r.Expect.MustNotSend)
		}
	}
}

func TestCheckPollAnswerRefuses(t *testing.T) {
	mqtt := func(endpoint, more string) string {
		return `{"mqtt":{"endpoint":"` + endpoint + `","client_id":"c","username":"u","password":"p","publish_topic":"t"` +
			more + `}}`
	}
	if err := enrolment.CheckPollAnswer([]byte(mqtt("h:1883", `,"keepalive":60`))); err != nil {
		t.Fatalf("a good answer: %v", err)
	}
	firmware := func(version string) string {
		return `{"firmware":{"version":"` + version + `","url":"http://h/f.bin"}}`
	}
	tests := map[string]string{
		"no JSON":                  `{"mqtt":`,
		"no object":                `[]`,
		"two values":               `{} {}`,
		"section of a wrong type":  `{"mqtt":null}`,
		"unknown section":          `{"mqttt":{}}`,
		"other case, same section": `{"server_time":{"timestamp":1},"SERVER_TIME":{"timestamp":2}}`,
		"equal keys":               mqtt("h:1883", `,"endpoint":"mqtt://h"`),
		"8 KB":                     `{"server_time":{"timestamp":1}` + strings.Repeat(" ", 8<<10) + `}`,
		"endpoint IPv6":            mqtt("[::1]:1883", ""),
		"endpoint bare IPv6":       mqtt("::1", ""),
		"endpoint path":            mqtt("h:1883/x", ""),
		"endpoint port":            mqtt("h:abc", ""),
		"endpoint port 0":          mqtt("h:0", ""),
		"endpoint large port":      mqtt("h:70000", ""),
		"endpoint empty port":      mqtt("h:", ""),
		"endpoint without port":    mqtt("h", ""),
		"endpoint empty":           mqtt("", ""),
		"no topic":                 `{"mqtt":{"endpoint":"h:1883","client_id":"c"}}`,
		"keepalive as text":        mqtt("h:1883", `,"keepalive":"60"`),
		"a value of 4,000 bytes":   mqtt("h:1883", `,"x":"`+strings.Repeat("x", 4000)+`"`),
		"flash full": mqtt("h:1883", `,"x":"`+strings.Repeat("x", 1800)+`","y":"`+strings.Repeat("y", 1800)+
			`"`),
		"large CONNECT": `{"mqtt":{"endpoint":"h:1","client_id":"` + strings.Repeat("c", 900) +
			`","publish_topic":"t"}}`,
		"nested setting":           mqtt("h:1883", `,"x":{}`),
		"fraction":                 mqtt("h:1883", `,"x":1.5`),
		"control characters":       mqtt("h:1883", `,"x":"\u0000"`),
		"long websocket key":       `{"websocket":{"url":"ws://h/","a_key_of_16_char":1}}`,
		"websocket scheme":         `{"websocket":{"url":"http://h/"}}`,
		"code without challenge":   `{"activation":{"code":"123456","message":"m"}}`,
		"challenge without code":   `{"activation":{"challenge":"x","message":"m"}}`,
		"letters in the code":      `{"activation":{"code":"12345a","challenge":"x","message":"m"}}`,
		"time as text":             `{"server_time":{"timestamp":"1"}}`,
		"version latest":           firmware("latest"),
		"version 2..4":             firmware("2..4"),
		"version over int32":       firmware("2147483648"),
		"version empty":            firmware(""),
		"version of seven parts":   firmware("1.2.3.4.5.6.7"),
		"firmware without version": `{"firmware":{"url":"http://h/f"}}`,
		"force as bool":            `{"firmware":{"version":"1","url":"http://h/f","force":true}}`,
	}
	for name, body := range tests {
		if enrolment.CheckPollAnswer([]byte(body)) == nil {
			t.Errorf("%s passed: %.200s", name, body)
		}
	}
}

func TestEndpointsRefusedAtStart(t *testing.T) {
	for _, bad := range []string{"", "fleet.example.org", "mqtt://fleet.example.org:1883", "fleet.example.org:1883/x",
		"[::1]:1883",
		"a b:1883", "h:0", "h:+1", "h:1883 ", "-h:1883", "h\n:1883", "h:1883:1883", strings.Repeat("h", 300) + ":1"} {
		if _, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: bad}); err == nil {
			t.Errorf("%q was taken for an endpoint", bad)
		}
	}
}

// TestNoPollCanMakeAHarmfulAnswer runs the real service with anything that a device or a
// configuration could contain.
func TestNoPollCanMakeAHarmfulAnswer(t *testing.T) {
	anything := rapid.OneOf(rapid.String(), rapid.StringN(0, 4096, 8192), rapid.StringMatching(`[0-9a-f:-]{0,20}`))
	rapid.Check(t, func(t *rapid.T) {
		id, err := fleet.ParseDeviceID(rapid.OneOf(anything, rapid.StringMatching(`[A-Za-z0-9._-]{1,64}`)).Draw(t, "device"))
		if err != nil {
			return
		}
		endpoint := rapid.OneOf(anything, rapid.StringMatching(`[a-z0-9.-]{1,255}:[0-9]{1,6}`)).Draw(t, "endpoint")
		answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: endpoint})
		if err != nil {
			answers, _ = enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "fleet.example.org:1883"})
		}
		mode := rapid.SampledFrom([]fleet.EnrolmentMode{fleet.EnrolOpen, fleet.EnrolByCode, fleet.EnrolByApproval}).Draw(t,
			"mode")
		e, err := enrolment.New(enrolment.Options{Store: new(admissionStore), Mode: mode, Key: testKey,
			PublicName: anything.Draw(t, "name")})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			client := rapid.OneOf(anything, rapid.Just(uuid1)).Draw(t, "client")
			answer, err := e.Poll(enrolment.BootPoll{Device: id, ClientID: client, Board: anything.Draw(t, "board"),
				At: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			at := time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "now"), 0)
			body, err := answers.Body(answer, at)
			if err != nil {
				t.Errorf("withheld: %v", err)
			}
			if err := enrolment.CheckPollAnswer(body); err != nil {
				t.Errorf("%v in %s", err, body)
			}
		}
	})
}

func TestHarmfulAnswerIsWithheld(t *testing.T) {
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "h:1883", Location: time.FixedZone(
		"CST", 8*3600)})
	if err != nil {
		t.Fatal(err)
	}
	bad := enrolment.PollAnswer{Session: &enrolment.Credentials{ClientID: strings.Repeat("x", 4000), PublishTopic: "t"}}
	body, err := answers.Body(bad, time.UnixMilli(1786147200000))
	if want := `{"server_time":{"timestamp":1786147200000,"timezone_offset":480}}`; err == nil || string(body) != want {
		t.Errorf("body %s, error %v; want %s and an error", body, err, want)
	}
}

func FuzzCheckPollAnswer(f *testing.F) {
	f.Add([]byte(`{"mqtt":{"endpoint":"h:1883","publish_topic":"t"}}`))
	f.Add([]byte(`{"firmware":{"version":"1","url":"http://h","force":1}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if enrolment.CheckPollAnswer(body) == nil && !json.Valid(body) {
			t.Errorf("passed: %q", body)
		}
	})
}

// TestOfferForIncludedFirmware checks that an offer contains what the included firmware checks,
// and nothing more for an image without a manifest.
func TestOfferForIncludedFirmware(t *testing.T) {
	answers, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "h:1883"})
	if err != nil {
		t.Fatal(err)
	}
	session := &enrolment.Credentials{ClientID: "c", Username: "u", Password: "p", PublishTopic: "t"}
	offer := fleet.FirmwareOffer{Version: "2.5.0", URL: "http://h/d/x/firmware.bin"}
	firmware := func() string {
		t.Helper()
		body, err := answers.Body(enrolment.PollAnswer{Session: session, Offer: &offer}, time.UnixMilli(0))
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Firmware json.RawMessage }
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		return string(got.Firmware)
	}
	if got, want := firmware(), `{"version":"2.5.0","url":"http://h/d/x/firmware.bin","force":0}`; got != want {
		t.Errorf("plain: %s, want %s", got, want)
	}
	offer.SHA256, offer.Size, offer.Job, offer.Manifest, offer.Signature = "5e", 4096, "job.1", `{"chip":9}`, "c2ln"
	want := `{"version":"2.5.0","url":"http://h/d/x/firmware.bin","force":0,"sha256":"5e","size":4096,"job":"job.1","manifest":"{\"chip\":9}","signature":"c2ln"}`
	if got := firmware(); got != want {
		t.Errorf("signed: %s, want %s", got, want)
	}
	offer.Manifest = strings.Repeat("m", 1024)
	firmware() // the longest manifest still fits
}

// A device for which a WebSocket is chosen gets its address in place of MQTT's: with both it
// would use MQTT.
func TestPollAnswerWebSocket(t *testing.T) {
	for public, want := range map[string]string{
		"http://fleet.example.org:8080/": "ws://fleet.example.org:8080/xiaozhi/v1/",
		"https://fleet.example.org":      "wss://fleet.example.org/xiaozhi/v1/",
		"":                               "", // unknown: MQTT
	} {
		o, err := enrolment.NewPollAnswers(enrolment.PollAnswerOptions{Endpoint: "h:1883", PublicURL: public})
		if err != nil {
			t.Fatal(err)
		}
		text, err := o.Body(enrolment.PollAnswer{Transport: fleet.TransportWebSocket,
			Session: &enrolment.Credentials{ClientID: "c", Username: "u", Password: "p", PublishTopic: "t", Token: "a.b"}},
			time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var body struct {
			MQTT      map[string]any
			WebSocket map[string]any
		}
		if err := json.Unmarshal(text, &body); err != nil {
			t.Fatal(err)
		}
		if want == "" {
			if body.MQTT == nil || body.WebSocket != nil {
				t.Errorf("%s", text)
			}
			continue
		}
		if body.MQTT != nil || body.WebSocket["url"] != want || body.WebSocket["token"] != "a.b" ||
			body.WebSocket["version"] != 2.0 {
			t.Errorf("%s: %s", public, text)
		}
	}
}
