package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/alert"
	"fleetd/fleet/webhook"
)

var (
	admin    = fleet.Principal{Kind: fleet.KindSystem, Name: "test", Role: fleet.RoleAdmin}
	operator = fleet.Principal{Kind: fleet.KindOperator, Name: "ada", Role: fleet.RoleOperator}
)

// plainSealer stores secrets as they are.
type plainSealer struct{}

func (plainSealer) Seal(_ string, key []byte) []byte          { return key }
func (plainSealer) Open(_ string, key []byte) ([]byte, error) { return key, nil }

// memory stores one webhook.
type memory struct {
	webhook.Store
	hook *webhook.Webhook
	last webhook.Delivery
}

func (m *memory) Webhooks(context.Context) ([]webhook.Webhook, error) { return nil, nil }
func (m *memory) Webhook(context.Context, uuid.UUID) (webhook.Webhook, error) {
	return *m.hook, nil
}
func (m *memory) CreateWebhook(_ context.Context, _ fleet.Principal, w webhook.Webhook) error {
	m.hook = &w
	return nil
}
func (m *memory) UpdateWebhook(_ context.Context, _ fleet.Principal, w webhook.Webhook) error {
	m.hook = &w
	return nil
}
func (m *memory) SetWebhookDelivery(_ context.Context, _ uuid.UUID, d webhook.Delivery) error {
	m.last = d
	return nil
}

// world is the service with a chat service that checks each request.
type world struct {
	*testing.T
	*webhook.Service
	store *memory
	log   bytes.Buffer
	text  webhook.Text
	url   string

	mu     sync.Mutex
	now    time.Time
	bodies [][]byte
	header http.Header
	answer func(http.ResponseWriter)
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, store: &memory{}, now: time.Now().UTC(), answer: func(http.ResponseWriter) {},
		text: webhook.Text{Title: "An alert opened (critical)", Body: "3 devices are offline", Open: "Open"}}
	to := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.URL.Path != "/bot1:SEKRET/sendMessage" ||
			r.Header.Get("Content-Type") != "application/json" {
			http.Error(rw, "wrong request", http.StatusBadRequest)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.bodies, w.header = append(w.bodies, body), r.Header
		w.answer(rw)
	}))
	t.Cleanup(to.Close)
	w.url = to.URL + "/bot1:SEKRET/sendMessage"
	w.Service = webhook.New(webhook.Options{Store: w.store, Sealer: plainSealer{}, PublicURL: "https://fleet.example/",
		Text: func(lang string, j webhook.Job) webhook.Text {
			t := w.text
			t.Title = lang + ": " + t.Title
			return t
		},
		Log: slog.New(slog.NewTextHandler(&w.log, nil)), Now: func() time.Time { return w.now }})
	t.Cleanup(w.Close)
	return w
}

func (w *world) create(s webhook.Shape, lang string) {
	w.Helper()
	name, chat := "on call", ""
	if s == webhook.Telegram {
		chat = "-1001234567890"
	}
	if _, _, err := w.Create(w.Context(), admin, webhook.Request{Name: &name, URL: &w.url, Shape: &s, Lang: &lang,
		Chat: &chat}); err != nil {
		w.Fatal(err)
	}
}

var job = webhook.NewAlertJob(uuid.Nil, time.Now(), webhook.AlertOpened, alert.Alert{ID: uuid.MustParse(
	"01a1fc6b-6015-711c-9d5d-5b739ab112aa"), Kind: alert.DevicesOffline, State: alert.Open, Severity: alert.Bad})

func (w *world) deliver() error { return w.Deliver(w.Context(), job) }

// accepts answers as the service does when it accepts a message.
var accepts = map[webhook.Shape]string{webhook.Slack: "ok", webhook.Telegram: `{"ok":true,"result":{"message_id":1}}`,
	webhook.WeCom: `{"errcode":0,"errmsg":"ok"}`, webhook.Feishu: `{"code":0,"msg":"success","data":{}}`,
	webhook.DingTalk: `{"errcode":0,"errmsg":"ok"}`}

// decode reads a body strictly.
func decode[T any](t *testing.T, body []byte) (v T) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return v
}

type slackBody struct {
	Text   string
	Blocks []struct {
		Type string
		Text struct{ Type, Text string }
	}
}

type telegramBody struct {
	Chat    string `json:"chat_id"`
	Text    string
	Preview struct {
		Off bool `json:"is_disabled"`
	} `json:"link_preview_options"`
}

type wecomBody struct {
	Type     string `json:"msgtype"`
	Markdown struct{ Content string }
}

type feishuBody struct {
	Type    string `json:"msg_type"`
	Content struct {
		Post struct {
			Text struct {
				Title   string
				Content [][]struct{ Tag, Text, Href string }
			} `json:"zh_cn"`
		}
	}
}

type dingtalkBody struct {
	Type string `json:"msgtype"`
	Text struct{ Content string }
	At   struct {
		All bool `json:"isAtAll"`
	}
}

// message returns the text of a body in the service's form, which it checks.
func message(t *testing.T, s webhook.Shape, body []byte) string {
	t.Helper()
	switch s {
	case webhook.Slack:
		b := decode[slackBody](t, body)
		if len(b.Blocks) != 2 || b.Text != b.Blocks[0].Text.Text {
			t.Fatalf("body %s", body)
		}
		text := ""
		for _, block := range b.Blocks {
			if block.Type != "section" || block.Text.Type != "mrkdwn" || len([]rune(block.Text.Text)) > 3000 {
				t.Errorf("block of %d characters: %.200v", len([]rune(block.Text.Text)), block)
			}
			text += block.Text.Text + "\n"
		}
		return text
	case webhook.Telegram:
		b := decode[telegramBody](t, body)
		if n := len(utf16.Encode([]rune(b.Text))); b.Chat != "-1001234567890" || !b.Preview.Off || n > 4096 {
			t.Errorf("%d units: %.300s", n, body)
		}
		return b.Text
	case webhook.WeCom:
		b := decode[wecomBody](t, body)
		if b.Type != "markdown" || len(b.Markdown.Content) > 4096 {
			t.Errorf("%d bytes: %.300s", len(b.Markdown.Content), body)
		}
		return b.Markdown.Content
	case webhook.Feishu:
		b := decode[feishuBody](t, body)
		c := b.Content.Post.Text.Content
		if b.Type != "post" || len(c) != 2 || c[0][0].Tag != "text" || c[1][0].Tag != "a" || len(body) > 20_000 {
			t.Fatalf("body %.300s", body)
		}
		return b.Content.Post.Text.Title + "\n" + c[0][0].Text + "\n" + c[1][0].Href
	}
	b := decode[dingtalkBody](t, body)
	if b.Type != "text" || b.At.All || len(body) > 20_000 {
		t.Fatalf("body %.300s", body)
	}
	return b.Text.Content
}

func TestMessagesHaveTheFormOfTheService(t *testing.T) {
	const link = "https://fleet.example/alerts/01a1fc6b-6015-711c-9d5d-5b739ab112aa"
	for _, s := range webhook.Shapes[1:] {
		t.Run(string(s), func(t *testing.T) {
			w := newWorld(t)
			w.create(s, "zh-CN")
			w.answer = func(rw http.ResponseWriter) { _, _ = io.WriteString(rw, accepts[s]) }
			w.text.Body = "name <!channel> <@all> & [link](http://evil.example) *b* `c`\nsecond"
			if err := w.deliver(); err != nil {
				t.Fatal(err)
			}
			text := message(t, s, w.bodies[0])
			if !strings.Contains(text, "zh-CN: An alert opened") || !strings.Contains(text, link) ||
				!strings.Contains(text, "second") {
				t.Errorf("message %q", text)
			}
			forbidden := map[webhook.Shape][]string{webhook.Slack: {"<!", "<@", " & "},
				webhook.WeCom: {"<@", "[link]", "*b*", "`c`", "&"}}[s]
			for _, mark := range forbidden {
				if strings.Contains(text, mark) {
					t.Errorf("%q is markup in %q", mark, text)
				}
			}
			if w.header.Get(webhook.SignatureHeader) != "" {
				t.Error("the message is signed")
			}
			for _, r := range []string{"x", "汉", "😀", "&"} {
				w.text.Body = strings.Repeat(r, 30_000)
				w.text.Title = strings.Repeat(r, 5000)
				if err := w.deliver(); err != nil {
					t.Fatal(err)
				}
				text := message(t, s, w.bodies[len(w.bodies)-1])
				if !strings.Contains(text, link) || !strings.Contains(text, "…") || strings.Contains(text, "\ufffd") ||
					s == webhook.Slack && strings.Contains(strings.ReplaceAll(text, "&amp;", ""), "&") {
					t.Errorf("long message: %.80q … %q", text, text[len(text)-200:])
				}
			}
		})
	}
}

func TestAnswersOfTheServices(t *testing.T) {
	for _, tt := range []struct {
		shape  webhook.Shape
		status int
		body   string
		header string
		code   string
		after  time.Duration
	}{
		{webhook.Fleetd, 204, "", "", "", 0},
		{webhook.Fleetd, 200, "anything", "", "", 0},
		{webhook.Fleetd, 429, "", "7", "webhook_status", 7 * time.Second},
		{webhook.Slack, 200, "ok", "", "", 0},
		{webhook.Slack, 200, "invalid_token", "", "webhook_rejected", 0},
		{webhook.Slack, 200, "<html>sign in</html>", "", "webhook_answer", 0},
		{webhook.Slack, 404, "no_service", "", "webhook_status", 0},
		{webhook.Slack, 429, "rate_limited", "30", "webhook_status", 30 * time.Second},
		{webhook.Slack, 429, "", "soon", "webhook_status", time.Minute},
		{webhook.Slack, 302, "", "", "webhook_status", 0},
		{webhook.Telegram, 200, `{"ok":true}`, "", "", 0},
		{webhook.Telegram, 200, `{"ok":false,"error_code":400,"description":"chat not found"}`, "", "webhook_rejected", 0},
		{webhook.Telegram, 200, `{}`, "", "webhook_answer", 0},
		{webhook.Telegram, 200, `ok`, "", "webhook_answer", 0},
		{webhook.Telegram, 429, `{"ok":false,"error_code":429,"parameters":{"retry_after":5}}`, "", "webhook_status", 5 * time.Second},
		{webhook.Telegram, 429, `{"ok":false,"parameters":{"retry_after":9000000000}}`, "", "webhook_status", time.Hour},
		{webhook.WeCom, 200, `{"errcode":0,"errmsg":"ok"}`, "", "", 0},
		{webhook.WeCom, 200, `{"errcode":93000,"errmsg":"invalid webhook url"}`, "", "webhook_rejected", 0},
		{webhook.WeCom, 200, `{"errcode":45009,"errmsg":"api freq out of limit"}`, "", "webhook_rejected", time.Minute},
		{webhook.WeCom, 200, `{"errmsg":"ok"}`, "", "webhook_answer", 0},
		{webhook.Feishu, 200, `{"code":0,"msg":"success"}`, "", "", 0},
		{webhook.Feishu, 200, `{"StatusCode":0,"StatusMessage":"success"}`, "", "", 0},
		{webhook.Feishu, 200, `{"code":19024,"msg":"Key Words Not Found"}`, "", "webhook_rejected", 0},
		{webhook.Feishu, 200, `{"code":11232,"msg":"frequency limited"}`, "", "webhook_rejected", time.Minute},
		{webhook.DingTalk, 200, `{"errcode":0,"errmsg":"ok"}`, "", "", 0},
		{webhook.DingTalk, 200, `{"errcode":310000,"errmsg":"keywords not in content"}`, "", "webhook_rejected", 0},
		{webhook.DingTalk, 200, `{"errcode":130101,"errmsg":"send too fast"}`, "", "webhook_rejected", time.Minute},
	} {
		t.Run(fmt.Sprint(tt.shape, " ", tt.status, " ", tt.body), func(t *testing.T) {
			w := newWorld(t)
			w.create(tt.shape, "en")
			w.answer = func(rw http.ResponseWriter) {
				if tt.header != "" {
					rw.Header().Set("Retry-After", tt.header)
				}
				rw.WriteHeader(tt.status)
				_, _ = io.WriteString(rw, tt.body)
			}
			err := w.deliver()
			if (err == nil) != (tt.code == "") || w.store.last.Reason.Code != tt.code || w.store.last.Status != tt.status {
				t.Errorf("error %v, outcome %+v", err, w.store.last)
			}
			var wait *webhook.RetryLater
			if errors.As(err, &wait) != (tt.after > 0) || wait != nil && wait.After != tt.after {
				t.Errorf("error %v, want to wait %v", err, tt.after)
			}
			for name, text := range map[string]string{"error": fmt.Sprint(err), "log": w.log.String(),
				"outcome": fmt.Sprint(w.store.last.Reason)} {
				if strings.Contains(text, "SEKRET") || strings.Contains(text, "sign in") {
					t.Errorf("the %s has too much: %s", name, text)
				}
			}
			if tt.after == 0 {
				return
			}
			// Other deliveries wait as well, and go on afterwards.
			asked := len(w.bodies)
			if err := w.deliver(); !errors.As(err, &wait) || len(w.bodies) != asked {
				t.Errorf("a second delivery: %v, %d requests", err, len(w.bodies))
			}
			w.now = w.now.Add(tt.after)
			w.answer = func(rw http.ResponseWriter) { _, _ = io.WriteString(rw, accepts[tt.shape]) }
			if err := w.deliver(); err != nil || len(w.bodies) != asked+1 {
				t.Errorf("after the wait: %v", err)
			}
		})
	}
}

func TestRefusedShapes(t *testing.T) {
	w := newWorld(t)
	name, url := "on call", w.url
	for _, tt := range []struct {
		shape      webhook.Shape
		chat, lang string
		code       string
	}{
		{"irc", "", "en", "invalid_webhook_shape"},
		{webhook.Telegram, "", "en", "invalid_webhook_chat"},
		{webhook.Telegram, "12\n34", "en", "invalid_webhook_chat"},
		{webhook.Telegram, "12 34", "en", "invalid_webhook_chat"},
		{webhook.Telegram, strings.Repeat("1", 30), "en", "invalid_webhook_chat"},
		{webhook.Slack, "12", "en", "invalid_webhook_chat"},
		{webhook.Slack, "", "fr", "invalid_mail_language"},
	} {
		_, _, err := w.Create(t.Context(), admin, webhook.Request{Name: &name, URL: &url, Shape: &tt.shape, Chat: &tt.chat,
			Lang: &tt.lang})
		var refused *fleet.Error
		if !errors.As(err, &refused) || refused.Code != tt.code || w.store.hook != nil {
			t.Errorf("%s %q %s: %v", tt.shape, tt.chat, tt.lang, err)
		}
	}
	shape := webhook.Slack
	asked := webhook.Request{Name: &name, URL: &url, Shape: &shape}
	if _, _, err := w.Create(t.Context(), operator, asked); !errors.Is(err, fleet.ErrForbidden) {
		t.Errorf("an operator: %v", err)
	}
	chat := "@fleet_alerts"
	shape = webhook.Telegram
	r := webhook.Request{Name: &name, URL: &url, Shape: &shape, Chat: &chat}
	if _, _, err := w.Create(t.Context(), admin, r); err != nil {
		t.Fatal(err)
	}
	// Another shape has no chat.
	shape = webhook.WeCom
	_, err := w.Update(t.Context(), admin, w.store.hook.ID, webhook.Request{Shape: &shape})
	if err != nil || w.store.hook.Chat != "" {
		t.Errorf("%+v, %v", w.store.hook, err)
	}
}
