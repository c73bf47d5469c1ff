package voicetest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
)

// An OTA is the OTA address of a voice server. It answers boot polls with the address to connect
// to, and with a code until the device is bound.
type OTA struct {
	http *httptest.Server

	mu     sync.Mutex
	answer OTAAnswer
	polls  []OTAPoll
}

// An OTAAnswer is the answer of an [OTA].
type OTAAnswer struct {
	URL, Token string
	Code       string // "": the device is bound
	Instead    http.HandlerFunc
}

// An OTAPoll is a received boot poll.
type OTAPoll struct {
	Header http.Header
	Body   string
}

// StartOTA answers boot polls until Close.
func StartOTA(a OTAAnswer) *OTA {
	o := &OTA{answer: a}
	o.http = httptest.NewServer(http.HandlerFunc(o.serve))
	return o
}

// URL returns the OTA address.
func (o *OTA) URL() string { return o.http.URL + "/xiaozhi/ota/" }

// Close stops the OTA address.
func (o *OTA) Close() {
	o.http.CloseClientConnections()
	o.http.Close()
}

// Set changes the answer.
func (o *OTA) Set(a OTAAnswer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = a
}

// Polls returns the received boot polls in order.
func (o *OTA) Polls() []OTAPoll {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]OTAPoll(nil), o.polls...)
}

func (o *OTA) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	o.mu.Lock()
	o.polls = append(o.polls, OTAPoll{r.Header, string(body)})
	a := o.answer
	o.mu.Unlock()
	if a.Instead != nil {
		a.Instead(w, r)
		return
	}
	answer := map[string]any{
		"server_time": map[string]any{"timestamp": 1786147200000, "timezone_offset": 480},
		// The server offers firmware and an MQTT broker, which must both be ignored.
		"firmware":  map[string]any{"version": "9.9.9", "url": "http://192.0.2.9/evil.bin", "force": 1},
		"mqtt":      map[string]any{"endpoint": "192.0.2.9:1883", "client_id": "x", "publish_topic": "device-server"},
		"websocket": map[string]any{"url": a.URL, "token": a.Token},
	}
	if a.Code != "" {
		answer["activation"] = map[string]any{"code": a.Code, "message": "xiaozhi.example\n" + a.Code, "challenge": "c"}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}
