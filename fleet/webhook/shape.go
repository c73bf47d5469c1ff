package webhook

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"fleetd/fleet"
)

// A Shape is the format of the deliveries to an address, and of the receiver's answers.
type Shape string

const (
	Fleetd   Shape = "fleetd"   // signed JSON with the whole event
	Slack    Shape = "slack"    // incoming webhook
	Telegram Shape = "telegram" // sendMessage of the Bot API; the URL has the bot's token
	WeCom    Shape = "wecom"    // robot of a WeCom group; the URL has its key
	Feishu   Shape = "feishu"   // custom robot of a Feishu or Lark group
	DingTalk Shape = "dingtalk" // custom robot of a DingTalk group
)

// Shapes lists every shape.
var Shapes = []Shape{Fleetd, Slack, Telegram, WeCom, Feishu, DingTalk}

// A Text is a message for people. It is plain text with parts from devices; each shape escapes it.
type Text struct {
	Title string // what happened
	Body  string // to what, and by whom
	Open  string // label of the link
	Link  string
}

// Limits of messages.
const (
	maxSlackBlock = 3000 // characters
	maxTelegram   = 4096 // UTF-16 code units
	maxWeCom      = 4096 // bytes
	maxOther      = 4096 // bytes; Feishu and DingTalk allow some 20 kB for a request
)

// encode returns the body of a message.
func (s Shape) encode(t Text, chat string) ([]byte, error) {
	switch s {
	case Slack:
		title := "*" + clip(t.Title, 300, slackEscape, runes) + "*\n"
		text := title + clip(t.Body, maxSlackBlock-runes(title), slackEscape, runes)
		section := func(text string) map[string]any {
			return map[string]any{"type": "section", "text": map[string]any{"type": "mrkdwn", "text": text}}
		}
		return marshal(map[string]any{"text": text, "blocks": []any{section(text),
			section("<" + slackEscape(t.Link) + "|" + slackEscape(t.Open) + ">")}})
	case Telegram: // without parse_mode, the text is plain
		rest := "\n" + t.Link
		text := clip(t.Title, 300, plain, units) + "\n"
		text += clip(t.Body, maxTelegram-units(text)-units(rest), plain, units) + rest
		return marshal(map[string]any{"chat_id": chat, "text": text,
			"link_preview_options": map[string]any{"is_disabled": true}})
	case WeCom:
		rest := "\n[" + wecomEscape(t.Open) + "](" + t.Link + ")"
		text := "**" + clip(t.Title, 300, wecomEscape, bytesOf) + "**\n>"
		text += clip(t.Body, maxWeCom-len(text)-len(rest), wecomEscape, bytesOf) + rest
		return marshal(map[string]any{"msgtype": "markdown", "markdown": map[string]any{"content": text}})
	case Feishu: // the texts of a post are plain
		line := func(parts ...any) []any { return parts }
		return marshal(map[string]any{"msg_type": "post", "content": map[string]any{"post": map[string]any{
			"zh_cn": map[string]any{"title": clip(t.Title, 300, plain, bytesOf), "content": []any{
				line(map[string]any{"tag": "text", "text": clip(t.Body, maxOther, plain, bytesOf)}),
				line(map[string]any{"tag": "a", "text": t.Open, "href": t.Link})}}}}})
	default:
		rest := "\n" + t.Link
		text := clip(t.Title, 300, plain, bytesOf) + "\n"
		text += clip(t.Body, maxOther-len(text)-len(rest), plain, bytesOf) + rest
		return marshal(map[string]any{"msgtype": "text", "text": map[string]any{"content": text},
			"at": map[string]any{"isAtAll": false}})
	}
}

// marshal is json.Marshal without the escapes of HTML, which count towards limits of a request.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// slackEscape escapes the control characters of Slack's markup.
func slackEscape(s string) string { return slackReplacer.Replace(s) }

var slackReplacer = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// wecomEscape replaces the control characters of WeCom's Markdown, which has no escapes, by their
// full-width forms. With them a text could mention everyone, or show a link as another one.
func wecomEscape(s string) string { return wecomReplacer.Replace(s) }

var wecomReplacer = strings.NewReplacer("&", "＆", "<", "＜", ">", "＞", "[", "［", "]", "］", "*", "＊", "`", "｀",
	"\n", "\n>")

func plain(s string) string { return s }

// runes, units and bytesOf measure a text as a service does.
func runes(s string) int { return len([]rune(s)) }

func units(s string) int { return len(utf16.Encode([]rune(s))) }

func bytesOf(s string) int { return len(s) }

// clip escapes a text and cuts it to the limit, never within an escape.
func clip(text string, limit int, escape func(string) string, size func(string) int) string {
	if whole := escape(text); size(whole) <= limit {
		return whole
	}
	const end = "…"
	var b strings.Builder
	left := limit - size(end)
	for _, r := range text {
		part := escape(string(r))
		if left -= size(part); left < 0 {
			break
		}
		b.WriteString(part)
	}
	return b.String() + end
}

// codes of robots that get too many messages.
const (
	wecomLimited    = 45009
	feishuLimited   = 11232
	dingtalkLimited = 130101
)

// judge returns why a receiver has not accepted a delivery; the zero Reason if it has. after is how
// long it wants no further request. Of the answer it uses only numbers and the words of Slack, so that
// no address can be read through fleetd.
func (s Shape) judge(answer *http.Response, body []byte, now time.Time) (why fleet.Reason, after time.Duration) {
	var said struct {
		OK         *bool `json:"ok"`         // Telegram
		ErrorCode  int   `json:"error_code"` // Telegram
		ErrCode    *int  `json:"errcode"`    // WeCom, DingTalk
		Code       *int  `json:"code"`       // Feishu
		StatusCode *int  `json:"StatusCode"` // Feishu
		Parameters struct {
			RetryAfter int `json:"retry_after"` // seconds
		} `json:"parameters"`
	}
	isJSON := json.Unmarshal(body, &said) == nil
	if answer.StatusCode == http.StatusTooManyRequests {
		after = max(retryAfter(answer.Header.Get("Retry-After"), now), seconds(said.Parameters.RetryAfter))
		if after <= 0 {
			after = pause
		}
	}
	if answer.StatusCode >= 300 {
		return fleet.Because("webhook_status", "status", answer.StatusCode), after
	}
	rejected := func(code string) fleet.Reason {
		return fleet.Because("webhook_rejected", "status", answer.StatusCode, "error", code)
	}
	switch s {
	case Fleetd:
		return fleet.Reason{}, 0
	case Slack:
		text := strings.TrimSpace(string(body))
		switch {
		case text == "ok":
			return fleet.Reason{}, 0
		case slackError.MatchString(text):
			return rejected(text), 0
		}
	case Telegram:
		switch {
		case !isJSON || said.OK == nil:
		case *said.OK:
			return fleet.Reason{}, 0
		default:
			return rejected(strconv.Itoa(said.ErrorCode)), seconds(said.Parameters.RetryAfter)
		}
	default:
		code, limited := said.ErrCode, map[Shape]int{WeCom: wecomLimited, Feishu: feishuLimited, DingTalk: dingtalkLimited}[s]
		if s == Feishu {
			if code = said.Code; code == nil {
				code = said.StatusCode
			}
		}
		switch {
		case !isJSON || code == nil:
		case *code == 0:
			return fleet.Reason{}, 0
		case *code == limited:
			return rejected(strconv.Itoa(*code)), pause
		default:
			return rejected(strconv.Itoa(*code)), 0
		}
	}
	return fleet.Because("webhook_answer", "status", answer.StatusCode), 0
}

// slackError matches the words by which Slack refuses a message.
var slackError = regexp.MustCompile(`^[a-z][a-z0-9_]{1,60}$`)

// seconds returns a time that a receiver asks to wait, within bounds.
func seconds(n int) time.Duration {
	return time.Duration(min(max(0, n), int(maxPause/time.Second))) * time.Second
}

// retryAfter parses the header, which has seconds or a time.
func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
		return seconds(n)
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
