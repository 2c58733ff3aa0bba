package watch

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2/ktesting"
)

// splitText takes a file apart and returns what it holds, as "position: object", and the errors.
func splitText(t *testing.T, text string) (objects, malformed []string) {
	t.Helper()
	logger, _ := testLogger(t)
	d := &decoder{filter: filter{nodeName: "n1"}, logger: logger}
	d.next()
	s := splitter{decoder: d}
	s.file("f.yaml", []byte(text))
	objects, malformed = []string{}, []string{}
	for _, f := range s.found {
		objects = append(objects, f.text.at.String()+": "+f.key.String())
	}
	for _, err := range s.errors {
		malformed = append(malformed, err.Error())
	}
	return objects, malformed
}

func TestDocuments(t *testing.T) {
	const (
		svcA = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n"
		svcB = "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\n  namespace: other\n"
	)
	for _, test := range []struct {
		name      string
		text      string
		objects   []string
		malformed []string
	}{
		{name: "an empty file"},
		{name: "blank lines and comments", text: "\n# nothing\n  # here\n\n---\n# nor here\n"},
		{name: "one document", text: svcA, objects: []string{"f.yaml:1: document 1: services default/a"}},
		{
			name: "several documents", text: "# first\n" + svcA + "---\n" + svcB,
			objects: []string{"f.yaml:1: document 1: services default/a", "f.yaml:6: document 2: services other/b"},
		},
		{
			name:    "a leading marker, an empty document and a trailing marker",
			text:    "---\n" + svcA + "---\n---\n" + svcB + "---\n",
			objects: []string{"f.yaml:1: document 1: services default/a", "f.yaml:7: document 2: services other/b"},
		},
		{
			name:    "markers with comments and an end-of-document marker",
			text:    "%YAML 1.1\n--- # first\n" + svcA + "...\n--- # second\n" + svcB,
			objects: []string{"f.yaml:2: document 1: services default/a", "f.yaml:8: document 2: services other/b"},
		},
		{
			name:    "line ends and a byte order mark of Windows",
			text:    "\xef\xbb\xbf" + strings.ReplaceAll(svcA+"---\n"+svcB, "\n", "\r\n"),
			objects: []string{"f.yaml:1: document 1: services default/a", "f.yaml:5: document 2: services other/b"},
		},
		{
			name:    "dashes in a text are no marker",
			text:    "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  annotations:\n    note: |\n      a\n      ---\n      b\n    line: a --- b\n",
			objects: []string{"f.yaml:1: document 1: services default/a"},
		},
		{
			name: "the List that kubectl prints",
			text: "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: a\n" +
				"- apiVersion: discovery.k8s.io/v1\n  kind: EndpointSlice\n  addressType: IPv4\n  endpoints:\n  - addresses:\n    - 10.1.0.1\n" +
				"  metadata:\n    name: a-1\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: n1\n" +
				"- apiVersion: networking.k8s.io/v1\n  kind: ServiceCIDR\n  metadata:\n    name: kubernetes\nkind: List\nmetadata:\n  resourceVersion: \"\"\n",
			objects: []string{
				"f.yaml:3: document 1, item 1: services default/a",
				"f.yaml:7: document 1, item 2: endpointslices.discovery.k8s.io default/a-1",
				"f.yaml:15: document 1, item 3: nodes n1",
				"f.yaml:19: document 1, item 4: servicecidrs.networking.k8s.io kubernetes",
			},
		},
		{
			name: "an indented List with comments and blank lines, in a second document",
			text: svcA + "---\nkind: List\napiVersion: v1\nitems:\n\n  # the first\n  - kind: Service\n    apiVersion: v1\n    metadata: {name: b}\n" +
				"# the second\n\n  -\n    kind: Service\n    apiVersion: v1\n    metadata:\n      # a comment\n      name: c\n",
			objects: []string{
				"f.yaml:1: document 1: services default/a", "f.yaml:11: document 2, item 1: services default/b",
				"f.yaml:16: document 2, item 2: services default/c",
			},
		},
		{
			name:    "a ServiceList whose items have no type",
			text:    "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata:\n    name: a\n- metadata:\n    name: b\n",
			objects: []string{"f.yaml:4: document 1, item 1: services default/a", "f.yaml:6: document 1, item 2: services default/b"},
		},
		{name: "an empty List", text: "apiVersion: v1\nitems: []\nkind: List\n"},
		{
			name:    "a List in flow style",
			text:    "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service, metadata: {name: a}}]\n",
			objects: []string{"f.yaml:1: document 1, item 1: services default/a"},
		},
		{
			name:    "a document in flow style",
			text:    "# flow\n{apiVersion: v1, kind: Service, metadata: {name: a}}\n",
			objects: []string{"f.yaml:1: document 1: services default/a"},
		},
		{
			name: "a List whose items share an anchor is read as a whole",
			text: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: &m\n    name: a\n" +
				"- apiVersion: v1\n  kind: Service\n  metadata:\n    <<: *m\n    namespace: other\n",
			objects: []string{"f.yaml:1: document 1, item 1: services default/a", "f.yaml:1: document 1, item 2: services other/a"},
		},
		{
			name:    "a text that looks like an item is read as a whole",
			text:    "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: a\n    annotations:\n      note: \"x\n- y\"\n",
			objects: []string{"f.yaml:1: document 1, item 1: services default/a"},
		},
		{
			name:    "JSON",
			text:    `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}`,
			objects: []string{"f.yaml:1: document 1: services default/a"},
		},
		{
			name: "JSON values one after the other, and a YAML document",
			text: "\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\n\"metadata\":{\"name\":\"a\"}}\n\n{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n1\"}}\n---\n" + svcB,
			objects: []string{
				"f.yaml:2: document 1: services default/a", "f.yaml:5: document 2: nodes n1", "f.yaml:6: document 3: services other/b",
			},
		},
		{
			name:    "a JSON List",
			text:    "{\n \"apiVersion\": \"v1\",\n \"items\": [\n  {\"apiVersion\":\"v1\",\"kind\":\"Service\",\n   \"metadata\":{\"name\":\"a\"}},\n  {\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"b\"}}\n ],\n \"kind\": \"List\"\n}\n",
			objects: []string{"f.yaml:4: document 1, item 1: services default/a", "f.yaml:6: document 1, item 2: services default/b"},
		},
		{
			name: "other kinds and what S1 leaves out",
			text: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: k}\n---\n" +
				"apiVersion: v1\nkind: Node\nmetadata: {name: n2}\n---\napiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: p}\n",
		},
		{
			name:    "a namespace on a Node does not count",
			text:    "apiVersion: v1\nkind: Node\nmetadata: {name: n1, namespace: x}\n",
			objects: []string{"f.yaml:1: document 1: nodes n1"},
		},

		{
			name:      "a malformed document between good ones",
			text:      svcA + "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: a: b\n---\n" + svcB,
			objects:   []string{"f.yaml:1: document 1: services default/a", "f.yaml:10: document 3: services other/b"},
			malformed: []string{"f.yaml:9: document 2: not YAML: mapping values are not allowed in this context"},
		},
		{
			name:      "an item that is not YAML leaves the others alone",
			text:      "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: a\n- apiVersion: v1\n  kind: \"Service\n  metadata:\n    name: b\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: c\n",
			objects:   []string{"f.yaml:4: document 1, item 1: services default/a", "f.yaml:12: document 1, item 3: services default/c"},
			malformed: []string{"f.yaml:11: document 1, item 2: not YAML: found unexpected end of stream"},
		},
		{
			name:    "an item of the wrong type leaves the others alone",
			text:    "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: a\n  spec:\n    ports: many\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: b\n- apiVersion: v1\n  kind: Service\n",
			objects: []string{"f.yaml:10: document 1, item 2: services default/b"},
			malformed: []string{
				"f.yaml:4: document 1, item 1: Service a: json: cannot unmarshal string into Go struct field ServiceSpec.spec.ports of type []v1.ServicePort",
				"f.yaml:14: document 1, item 3: Service without a name",
			},
		},
		{
			name:      "a JSON item of the wrong type",
			text:      "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\",\"namespace\":\"x\"},\"spec\":1},\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"b\"}}]}",
			objects:   []string{"f.yaml:3: document 1, item 2: services default/b"},
			malformed: []string{"f.yaml:2: document 1, item 1: Service x/a: json: cannot unmarshal number into Go struct field Service.spec of type v1.ServiceSpec"},
		},
		{
			name: "documents in flow style are not separated by commas",
			text: "{apiVersion: v1, kind: Pod}, {apiVersion: v1, kind: Pod}\n",
			malformed: []string{
				"f.yaml:1: document 1: not JSON: invalid character 'a' looking for beginning of object key string",
				"f.yaml:1: document 2: not JSON: invalid character ',' looking for beginning of value",
			},
		},
		{
			name:      "an item that is not JSON leaves the others alone",
			text:      "{\"kind\":\"List\",\"apiVersion\":\"v1\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\n\"metadata\":{\"name\" \"a\"}},\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"b]}\\\"\"}}]}",
			objects:   []string{"f.yaml:4: document 1, item 2: services default/b]}\""},
			malformed: []string{"f.yaml:3: document 1, item 1: Service: invalid character '\"' after object key"},
		},
		{
			name:      "a JSON List with something between its items",
			text:      "{\"kind\":\"List\",\"apiVersion\":\"v1\",\n\"items\":[{} {}]}",
			malformed: []string{"f.yaml:2: document 1: List: invalid character '{' after array element"},
		},
		{
			name:      "JSON that ends too early, after a good value",
			text:      "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\"}}\n{\"apiVersion\":\"v1\",\n\"kind\":",
			objects:   []string{"f.yaml:1: document 1: services default/a"},
			malformed: []string{"f.yaml:3: document 2: not JSON: unexpected end of JSON input"},
		},
		{
			name:    "neither JSON nor YAML",
			text:    "{\"apiVersion\":\"v1\",\n\"kind\":}}\n---\n" + svcA,
			objects: []string{"f.yaml:3: document 3: services default/a"},
			malformed: []string{
				"f.yaml:2: document 1: not JSON: invalid character '}' looking for beginning of value",
				"f.yaml:2: document 2: not JSON: invalid character '}' looking for beginning of value",
			},
		},
		{name: "a document without a kind", text: "metadata:\n  name: a\n", malformed: []string{"f.yaml:1: document 1: not a Kubernetes object: it has no kind"}},
		{name: "a document without an apiVersion", text: "kind: Service\nmetadata:\n  name: a\n", malformed: []string{"f.yaml:1: document 1: not a Kubernetes object: Service without an apiVersion"}},
		{name: "a document that is a text", text: "hello\n", malformed: []string{"f.yaml:1: document 1: not a Kubernetes object: json: cannot unmarshal string into Go value of type v1.TypeMeta"}},
		{name: "a List whose items are none", text: "apiVersion: v1\nkind: List\nitems: 3\n", malformed: []string{"f.yaml:1: document 1: List: json: cannot unmarshal number into Go struct field .items of type []json.RawMessage"}},
		{name: "a List within a List", text: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  items: []\n", malformed: []string{"f.yaml:4: document 1, item 1: List within a List"}},
		{name: "UTF-16", text: "\xff\xfea\x00", malformed: []string{"f.yaml:1: document 1: the file is UTF-16, save it as UTF-8"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			objects, malformed := splitText(t, test.text)
			assert.Equal(t, append([]string{}, test.objects...), objects)
			assert.Equal(t, append([]string{}, test.malformed...), malformed)
		})
	}
}

func TestDocumentsOfAnUnsupportedVersionAreNamedInTheLog(t *testing.T) {
	config := ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0))
	logger := ktesting.NewLogger(t, config)
	d := &decoder{logger: logger}
	d.next()
	s := splitter{decoder: d}
	s.file("f.yaml", []byte("apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\n"))
	assert.Empty(t, s.found)
	assert.Empty(t, s.errors)
	logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	assert.Contains(t, logs, `apiVersion="discovery.k8s.io/v1beta1"`)
	assert.NotContains(t, logs, "Pod", "what is not meant to be used is not worth a line")
}

func TestDocumentsThatAreReadAgainAreWhatTheyWere(t *testing.T) {
	const items = "items:\n- metadata: {name: n1}\n"
	text := "apiVersion: v1\nkind: ServiceList\n" + items + "---\napiVersion: v1\nkind: NodeList\n" + items
	logger, _ := testLogger(t)
	d := &decoder{filter: filter{nodeName: "n1"}, logger: logger}
	for range 2 {
		d.next()
		s := splitter{decoder: d}
		s.file("f.yaml", []byte(text))
		require.Empty(t, s.errors)
		require.Len(t, s.found, 2)
		assert.Equal(t, key{services, "default", "n1"}, s.found[0].key)
		assert.Equal(t, key{nodes, "", "n1"}, s.found[1].key, "the text alone does not tell")
	}
}

// cluster returns n Services with an EndpointSlice of m endpoints each, as kubectl prints them.
func cluster(n, m int) (yamlText, jsonText string) {
	var y, j strings.Builder
	y.WriteString("apiVersion: v1\nitems:\n")
	j.WriteString("{\n\"apiVersion\": \"v1\",\n\"items\": [\n")
	for i := range n {
		ip := fmt.Sprintf("10.%d.%d", i/250, i%250)
		fmt.Fprintf(&y, `- apiVersion: v1
  kind: Service
  metadata:
    creationTimestamp: "2026-01-01T00:00:00Z"
    labels:
      app: svc-%[1]d
    name: svc-%[1]d
    namespace: default
    resourceVersion: "%[1]d"
  spec:
    clusterIP: %[2]s.1
    clusterIPs:
    - %[2]s.1
    internalTrafficPolicy: Cluster
    ipFamilies:
    - IPv4
    ports:
    - name: http
      port: 80
      protocol: TCP
      targetPort: 8080
    selector:
      app: svc-%[1]d
    type: ClusterIP
- addressType: IPv4
  apiVersion: discovery.k8s.io/v1
  endpoints:
`, i, ip)
		fmt.Fprintf(&j, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"svc-%[1]d","namespace":"default","labels":{"app":"svc-%[1]d"}},
"spec":{"clusterIP":"%[2]s.1","clusterIPs":["%[2]s.1"],"ipFamilies":["IPv4"],"ports":[{"name":"http","port":80,"protocol":"TCP","targetPort":8080}],"type":"ClusterIP"}},
{"addressType":"IPv4","apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"svc-%[1]d-x","namespace":"default","labels":{"kubernetes.io/service-name":"svc-%[1]d"}},
"ports":[{"name":"http","port":8080,"protocol":"TCP"}],"endpoints":[
`, i, ip)
		for e := range m {
			fmt.Fprintf(&y, `  - addresses:
    - %[1]s.%[2]d
    conditions:
      ready: true
      serving: true
      terminating: false
    nodeName: node-%[2]d
    targetRef:
      kind: Pod
      name: svc-%[3]d-%[2]d
      namespace: default
      uid: 7f6b0ec5-0000-4f00-8000-%012[3]d
    zone: zone-a
`, ip, e, i)
			comma := ","
			if e == m-1 {
				comma = "]}"
			}
			fmt.Fprintf(&j, `{"addresses":["%[1]s.%[2]d"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"node-%[2]d",
"targetRef":{"kind":"Pod","name":"svc-%[3]d-%[2]d","namespace":"default"},"zone":"zone-a"}%[4]s
`, ip, e, i, comma)
		}
		fmt.Fprintf(&y, `  kind: EndpointSlice
  metadata:
    labels:
      kubernetes.io/service-name: svc-%[1]d
    name: svc-%[1]d-x
    namespace: default
  ports:
  - name: http
    port: 8080
    protocol: TCP
`, i)
		if i < n-1 {
			j.WriteString(",")
		}
	}
	y.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
	j.WriteString("],\n\"kind\": \"List\"}\n")
	return y.String(), j.String()
}

func TestDocumentsOfALargeClusterAreAllFound(t *testing.T) {
	yamlText, jsonText := cluster(50, 3)
	for _, text := range []string{yamlText, jsonText} {
		objects, malformed := splitText(t, text)
		assert.Len(t, objects, 100)
		assert.Empty(t, malformed)
	}
}

func FuzzDocuments(f *testing.F) {
	yamlText, jsonText := cluster(2, 2)
	f.Add([]byte(yamlText))
	f.Add([]byte(jsonText))
	f.Add([]byte("---\n{a: b}\n...\n--- |\n x\n"))
	f.Add([]byte("items:\n  -\n - a\nkind: List\n"))
	f.Add([]byte("items:\n- a: &x [1]\n- *x\nkind: List\napiVersion: v1\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		text := string(data)
		logger, _ := testLogger(t)
		read := func(d *decoder) splitter {
			d.next()
			s := splitter{decoder: d}
			s.file("f.yaml", []byte(text)) // a copy: the splitter writes to it
			return s
		}
		d := &decoder{filter: filter{nodeName: "n1"}, logger: logger}
		first := read(d)
		lines := strings.Count(text, "\n") + 1
		check := func(at Position) {
			if at.Line < 1 || at.Line > lines || at.Document < 1 {
				t.Errorf("%s of %d lines", at, lines)
			}
		}
		for _, o := range first.found {
			check(o.text.at)
			if o.key.name == "" || o.object == nil {
				t.Errorf("%s: object %q without a name or nothing", o.text.at, o.key)
			}
		}
		for _, err := range first.errors {
			check(err.Position)
		}
		again := read(d)
		if len(again.found) != len(first.found) || len(again.errors) != len(first.errors) {
			t.Errorf("read again: %d objects and %d errors, not %d and %d",
				len(again.found), len(again.errors), len(first.found), len(first.errors))
		}
		for i, o := range again.found {
			if o.key != first.found[i].key || o.sum != first.found[i].sum {
				t.Errorf("read again: %q, not %q", o.key, first.found[i].key)
			}
		}
	})
}
