package forms

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// An Equivalent does the same as a form, outside of the console: a request to REST and a command of
// fleetd. It contains no secret.
type Equivalent struct {
	Operation string // id in the OpenAPI document
	Method    string
	Path      string         // below /api/v1
	Body      map[string]any // nil: none
	Picture   bool           // the request also sends a file
	Args      []string       // of the command; nil if no command does the same
	Stdin     string         // of the command
	OnServer  bool           // the command uses the database, on the server's machine
	// Secret is the environment variable with the value of a further member of Body, SecretMember; both are
	// empty without one.
	Secret, SecretMember string
}

// Fields of an [Equivalent] that are not fields of its form: the page adds them.
const (
	EquivalentForm   = "as.form" // a key of [Equivalents]
	EquivalentOf     = "as.of"   // id of what the form changes
	EquivalentTool   = "as.tool"
	equivalentFields = "as.field." // and the name of an argument: its JSON type
)

// EquivalentFields returns the fields of a tool's form that its values do not show: the types of
// arguments.
func EquivalentFields(fields []Field) url.Values {
	v := url.Values{}
	for _, f := range fields {
		if !f.Ours {
			v.Set(equivalentFields+f.Name, f.Type)
		}
	}
	return v
}

// Equivalents has the forms whose equivalent follows their fields. Other forms, which show what they
// will do before they do it, have functions that return their equivalent. Times of a form are in the
// zone of now.
var Equivalents = map[string]func(v url.Values, now time.Time) Equivalent{
	"tool":        toolEquivalent,
	"tags":        tagsEquivalent,
	"hold":        holdEquivalent,
	"acknowledge": acknowledgeEquivalent,
	"release":     releaseEquivalent,
	"operator":    operatorEquivalent,
	"token":       tokenEquivalent,
	"silence":     silenceEquivalent,
	"redaction":   redactionEquivalent,
	"endpoint":    endpointEquivalent,
	"filter":      filterEquivalent,
	"webhook":     webhookEquivalent,
	"policy":      policyEquivalent,
	"rule":        ruleEquivalent,
	"upstream":    upstreamEquivalent,
	"plugin":      pluginEquivalent,
}

func toolEquivalent(v url.Values, _ time.Time) Equivalent {
	id, tool := v.Get(EquivalentOf), v.Get(EquivalentTool)
	args := equivalentArguments(v)
	e := Equivalent{Operation: "make-call", Method: "POST", Path: devicePath(id, "/calls"), Picture: v.Has("picture"),
		Body: map[string]any{"tool": tool}, Args: []string{"device", "call"}}
	if v.Get("offline") == "wait" {
		e.Body["offline"] = "wait"
		e.flag("offline-wait", "24h")
	}
	if e.Picture {
		e.flag("picture", "picture.jpg")
	}
	words := []string{id, tool}
	if len(args) > 0 {
		e.Body["arguments"] = args
		words = append(words, text(args))
	}
	if v.Get("interrupt") != "" {
		e.Body["interrupt"] = true
		e.Args = append(e.Args, "--interrupt")
	}
	return e.arguments(words...)
}

// equivalentArguments reads the arguments of a tool. A field that is not valid yet is left out.
func equivalentArguments(v url.Values) map[string]any {
	args := map[string]any{}
	for name, kind := range v {
		arg, ok := strings.CutPrefix(name, equivalentFields)
		if !ok {
			continue
		}
		f := Field{Name: arg, Type: kind[0]}
		f.Value = f.submitted(v)
		if value, present, problem := f.Parse(); present && problem == "" {
			args[arg] = value
		}
	}
	return args
}

func tagsEquivalent(v url.Values, _ time.Time) Equivalent {
	return Equivalent{Operation: "update-device", Method: "PATCH", Path: devicePath(v.Get(EquivalentOf), ""),
		Body: map[string]any{"tags": splitList(v.Get("tags"))}}
}

func holdEquivalent(v url.Values, now time.Time) Equivalent {
	id := v.Get(EquivalentOf)
	e := Equivalent{Operation: "hold-device", Method: "POST", Path: devicePath(id, "/hold"),
		Body: map[string]any{"reason": v.Get("reason")}, Args: []string{"device", "hold"}}
	return e.until(v.Get("hours"), now).arguments(id, v.Get("reason"))
}

// until adds the end of a hold.
func (e Equivalent) until(hours string, now time.Time) Equivalent {
	if n, err := strconv.Atoi(hours); err == nil && n > 0 {
		e.Body["until"] = now.Add(time.Duration(n) * time.Hour).UTC().Format(time.RFC3339)
		e.Args = append(e.Args, "--for="+strconv.Itoa(n)+"h")
	}
	return e
}

// arguments adds arguments that are not flags, also if they begin with a hyphen.
func (e Equivalent) arguments(args ...string) Equivalent {
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			e.Args = append(e.Args, "--")
			break
		}
	}
	e.Args = append(e.Args, args...)
	return e
}

// flag adds a flag that has a value.
func (e *Equivalent) flag(name, value string) {
	if value != "" {
		e.Args = append(e.Args, "--"+name+"="+value)
	}
}

// BulkEquivalent returns the equivalent of an act on many devices. ids replace the query; hours are
// those of a hold, and n is the number of devices that change.
func BulkEquivalent(act, query string, ids, tags []string, reason, hours string, n int, now time.Time) Equivalent {
	e := Equivalent{Operation: "bulk-devices", Method: "POST", Path: "/devices/bulk",
		Body: map[string]any{"act": act, "confirm": n}, Args: []string{"devices", act}}
	if len(ids) > 0 {
		e.Body["devices"] = ids
		e.Args = append(e.Args, "--id="+strings.Join(ids, ","))
	} else {
		e.Body["q"] = query
		e.Args = append(e.Args, "--query="+query)
	}
	e.flag("confirm", strconv.Itoa(n))
	switch act {
	case "tag", "untag":
		e.Body["tags"] = tags
		return e.arguments(tags...)
	case "hold":
		e.Body["reason"] = reason
		return e.until(hours, now).arguments(reason)
	}
	return e
}

func acknowledgeEquivalent(v url.Values, _ time.Time) Equivalent {
	id := v.Get(EquivalentOf)
	e := Equivalent{Operation: "acknowledge-alert", Method: "POST", Path: "/alerts/" + url.PathEscape(id) + "/acknowledge",
		Body: map[string]any{}, Args: []string{"alerts", "acknowledge", id}}
	e.member("note", v.Get("note"))
	e.flag("note", v.Get("note"))
	return e
}

// member adds a member of the body that has a value.
func (e Equivalent) member(name, value string) {
	if value != "" {
		e.Body[name] = value
	}
}

func releaseEquivalent(v url.Values, _ time.Time) Equivalent {
	images := append([]string{}, v["image"]...)
	e := Equivalent{Operation: "create-release", Method: "POST", Path: "/releases", Body: map[string]any{"images": images}}
	version, notes := strings.TrimSpace(v.Get("version")), strings.ReplaceAll(v.Get("notes"), "\r\n", "\n")
	e.member("version", version)
	e.member("notes", notes)
	e.Args = append([]string{"release", "create"}, images...)
	e.flag("version", version)
	e.flag("notes", notes)
	return e
}

func operatorEquivalent(v url.Values, _ time.Time) Equivalent {
	e := Equivalent{Operation: "create-operator", Method: "POST", Path: "/operators", OnServer: true,
		Secret: "FLEETD_USER_PASSWORD", SecretMember: "password", Body: map[string]any{"name": v.Get("name"), "role": v.Get("role")},
		Args: []string{"user", "add"}}
	e.flag("role", v.Get("role"))
	if scope := strings.TrimSpace(v.Get("scope")); scope != "" {
		e.Body["scope"] = scope
		e.flag("scope", scope)
		e.member("rest", v.Get("rest"))
		e.flag("rest", v.Get("rest"))
	}
	return e.arguments(v.Get("name"))
}

func tokenEquivalent(v url.Values, now time.Time) Equivalent {
	e := Equivalent{Operation: "create-token", Method: "POST", Path: "/tokens", OnServer: true,
		Body: map[string]any{"name": v.Get("name"), "role": v.Get("role"), "kind": v.Get("kind")},
		Args: []string{"token", "create"}}
	e.flag("role", v.Get("role"))
	e.flag("kind", v.Get("kind"))
	scope := strings.TrimSpace(v.Get("scope"))
	e.member("scope", scope)
	e.flag("scope", scope)
	if tools := splitList(v.Get("tools")); len(tools) > 0 {
		e.Body["tools"] = tools
		e.flag("tools", strings.Join(tools, ","))
	}
	if n, err := strconv.Atoi(strings.TrimSpace(v.Get("per_minute"))); err == nil && n > 0 {
		e.Body["per_minute"] = n
		e.flag("per-minute", strconv.Itoa(n))
	}
	if n, err := strconv.Atoi(v.Get("days")); err == nil && n > 0 {
		e.Body["expires_at"] = now.UTC().AddDate(0, 0, n).Format(time.RFC3339)
		e.flag("expires", strconv.Itoa(24*n)+"h")
	}
	return e.arguments(v.Get("name"))
}

// FanOutEquivalent returns the equivalent of a bulk call. ids replace the query; confirm is the typed
// count, 0 if none is needed.
func FanOutEquivalent(query string, ids []string, tool string, arguments json.RawMessage, maxInFlight int,
	wait time.Duration, interrupt bool, confirm int) Equivalent {
	e := Equivalent{Operation: "create-fanout", Method: "POST", Path: "/fanouts",
		Body: map[string]any{"tool": tool, "max_in_flight": maxInFlight}, Args: []string{"devices", "call"}}
	if len(ids) > 0 {
		e.Body["devices"] = ids
		e.flag("id", strings.Join(ids, ","))
	} else {
		e.Body["q"] = query
		e.Args = append(e.Args, "--query="+query)
	}
	e.flag("max-in-flight", strconv.Itoa(maxInFlight))
	if wait > 0 {
		e.Body["offline"], e.Body["offline_wait_ms"] = "wait", wait.Milliseconds()
		e.flag("offline-wait", wait.String())
	}
	if interrupt {
		e.Body["interrupt"] = true
		e.Args = append(e.Args, "--interrupt")
	}
	if confirm > 0 {
		e.Body["confirm"] = confirm
		e.flag("confirm", strconv.Itoa(confirm))
	}
	words := []string{tool}
	if len(arguments) > 0 && string(arguments) != "{}" {
		e.Body["arguments"] = arguments
		words = append(words, string(arguments))
	}
	return e.arguments(words...)
}

func devicePath(id, rest string) string { return "/devices/" + url.PathEscape(id) + rest }

// Curl returns the request as a command for a POSIX shell. It reads the address and the token from
// the environment.
func (e Equivalent) Curl() string {
	const next = " \\\n  "
	curl := "curl -sS"
	if e.Method != "POST" && (e.Method != "GET" || e.Body != nil) || e.Method == "POST" && e.Body == nil {
		curl += " -X " + e.Method
	}
	if path := "/api/v1" + e.Path; plainWord.MatchString(path) {
		curl += ` "$FLEETD_URL` + path + `"`
	} else {
		curl += ` "$FLEETD_URL"` + quote(path)
	}
	curl += next + `-H "Authorization: Bearer $FLEETD_TOKEN"`
	if e.Body == nil {
		return curl
	}
	body := quote(text(e.Body))
	if e.Secret != "" {
		body = strings.TrimSuffix(body, "}'") + `,"` + e.SecretMember + `":"'"$` + e.Secret + `"'"}'`
	}
	if e.Picture {
		return curl + next + "--form-string call=" + body + next + "-F picture=@picture.jpg"
	}
	return curl + next + "-H 'Content-Type: application/json'" + next + "-d " + body
}

// Command returns the command for a POSIX shell; "" if none does the same. It reads the address and
// the token from the environment.
func (e Equivalent) Command() string {
	if e.Args == nil {
		return ""
	}
	command := "fleetd"
	for _, a := range e.Args {
		command += " " + quote(a)
	}
	if e.Stdin != "" {
		return "printf %s " + quote(e.Stdin) + " |\n  " + command
	}
	return command
}

// text returns JSON on one line.
func text(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // of text, numbers and valid JSON
	return strings.TrimSuffix(b.String(), "\n")
}

// plainWord needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// quote returns s as one word of a POSIX shell, which has no notation for NUL.
func quote(s string) string {
	s = strings.ReplaceAll(s, "\x00", "")
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
