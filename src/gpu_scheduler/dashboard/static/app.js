// node_modules/preact/dist/preact.module.js
var n;
var l;
var u;
var t;
var i;
var r;
var o;
var e;
var f;
var c;
var a;
var s;
var h;
var p;
var v;
var y;
var d = {};
var w = [];
var _ = /acit|ex(?:s|g|n|p|$)|rph|grid|ows|mnc|ntw|ine[ch]|zoo|^ord|itera/i;
var g = Array.isArray;
function m(n3, l5) {
  for (var u5 in l5) n3[u5] = l5[u5];
  return n3;
}
function b(n3) {
  n3 && n3.parentNode && n3.parentNode.removeChild(n3);
}
function k(l5, u5, t4) {
  var i4, r4, o4, e4 = {};
  for (o4 in u5) "key" == o4 ? i4 = u5[o4] : "ref" == o4 ? r4 = u5[o4] : e4[o4] = u5[o4];
  if (arguments.length > 2 && (e4.children = arguments.length > 3 ? n.call(arguments, 2) : t4), "function" == typeof l5 && null != l5.defaultProps) for (o4 in l5.defaultProps) void 0 === e4[o4] && (e4[o4] = l5.defaultProps[o4]);
  return x(l5, e4, i4, r4, null);
}
function x(n3, t4, i4, r4, o4) {
  var e4 = { type: n3, props: t4, key: i4, ref: r4, __k: null, __: null, __b: 0, __e: null, __c: null, constructor: void 0, __v: null == o4 ? ++u : o4, __i: -1, __u: 0 };
  return null == o4 && null != l.vnode && l.vnode(e4), e4;
}
function S(n3) {
  return n3.children;
}
function C(n3, l5) {
  this.props = n3, this.context = l5;
}
function $(n3, l5) {
  if (null == l5) return n3.__ ? $(n3.__, n3.__i + 1) : null;
  for (var u5; l5 < n3.__k.length; l5++) if (null != (u5 = n3.__k[l5]) && null != u5.__e) return u5.__e;
  return "function" == typeof n3.type ? $(n3) : null;
}
function I(n3) {
  if (n3.__P && n3.__d) {
    var u5 = n3.__v, t4 = u5.__e, i4 = [], r4 = [], o4 = m({}, u5);
    o4.__v = u5.__v + 1, l.vnode && l.vnode(o4), q(n3.__P, o4, u5, n3.__n, n3.__P.namespaceURI, 32 & u5.__u ? [t4] : null, i4, null == t4 ? $(u5) : t4, !!(32 & u5.__u), r4), o4.__v = u5.__v, o4.__.__k[o4.__i] = o4, D(i4, o4, r4), u5.__e = u5.__ = null, o4.__e != t4 && P(o4);
  }
}
function P(n3) {
  if (null != (n3 = n3.__) && null != n3.__c) return n3.__e = n3.__c.base = null, n3.__k.some(function(l5) {
    if (null != l5 && null != l5.__e) return n3.__e = n3.__c.base = l5.__e;
  }), P(n3);
}
function A(n3) {
  (!n3.__d && (n3.__d = true) && i.push(n3) && !H.__r++ || r != l.debounceRendering) && ((r = l.debounceRendering) || o)(H);
}
function H() {
  try {
    for (var n3, l5 = 1; i.length; ) i.length > l5 && i.sort(e), n3 = i.shift(), l5 = i.length, I(n3);
  } finally {
    i.length = H.__r = 0;
  }
}
function L(n3, l5, u5, t4, i4, r4, o4, e4, f5, c4, a4) {
  var s4, h5, p5, v4, y5, _6, g4 = t4 && t4.__k || w, m5 = l5.length;
  for (f5 = T(u5, l5, g4, f5, m5), s4 = 0; s4 < m5; s4++) null != (p5 = u5.__k[s4]) && (h5 = -1 != p5.__i && g4[p5.__i] || d, p5.__i = s4, _6 = q(n3, p5, h5, i4, r4, o4, e4, f5, c4, a4), v4 = p5.__e, p5.ref && h5.ref != p5.ref && (h5.ref && J(h5.ref, null, p5), a4.push(p5.ref, p5.__c || v4, p5)), null == y5 && null != v4 && (y5 = v4), 4 & p5.__u ? (f5 = j(p5, f5, n3), h5.__e && (h5.__e = null)) : "function" == typeof p5.type && void 0 !== _6 ? f5 = _6 : v4 && (f5 = v4.nextSibling), p5.__u &= -7);
  return u5.__e = y5, f5;
}
function T(n3, l5, u5, t4, i4) {
  var r4, o4, e4, f5, c4, a4 = u5.length, s4 = a4, h5 = 0;
  for (n3.__k = new Array(i4), r4 = 0; r4 < i4; r4++) null != (o4 = l5[r4]) && "boolean" != typeof o4 && "function" != typeof o4 ? ("string" == typeof o4 || "number" == typeof o4 || "bigint" == typeof o4 || o4.constructor == String ? o4 = n3.__k[r4] = x(null, o4, null, null, null) : g(o4) ? o4 = n3.__k[r4] = x(S, { children: o4 }, null, null, null) : void 0 === o4.constructor && o4.__b > 0 ? o4 = n3.__k[r4] = x(o4.type, o4.props, o4.key, o4.ref ? o4.ref : null, o4.__v) : n3.__k[r4] = o4, f5 = r4 + h5, o4.__ = n3, o4.__b = n3.__b + 1, e4 = null, -1 != (c4 = o4.__i = O(o4, u5, f5, s4)) && (s4--, (e4 = u5[c4]) && (e4.__u |= 2)), null == e4 || null == e4.__v ? (-1 == c4 && (i4 > a4 ? h5-- : i4 < a4 && h5++), "function" != typeof o4.type && (o4.__u |= 4)) : c4 != f5 && (c4 == f5 - 1 ? h5-- : c4 == f5 + 1 ? h5++ : (c4 > f5 ? h5-- : h5++, o4.__u |= 4))) : n3.__k[r4] = null;
  if (s4) for (r4 = 0; r4 < a4; r4++) null != (e4 = u5[r4]) && 0 == (2 & e4.__u) && (e4.__e == t4 && (t4 = $(e4)), K(e4, e4));
  return t4;
}
function j(n3, l5, u5) {
  var t4, i4;
  if ("function" == typeof n3.type) {
    for (t4 = n3.__k, i4 = 0; t4 && i4 < t4.length; i4++) t4[i4] && (t4[i4].__ = n3, l5 = j(t4[i4], l5, u5));
    return l5;
  }
  n3.__e != l5 && (l5 && n3.type && !l5.parentNode && (l5 = $(n3)), l5 = u5.insertBefore(n3.__e, l5 || null));
  do {
    l5 = l5 && l5.nextSibling;
  } while (null != l5 && 8 == l5.nodeType);
  return l5;
}
function O(n3, l5, u5, t4) {
  var i4, r4, o4, e4 = n3.key, f5 = n3.type, c4 = l5[u5], a4 = null != c4 && 0 == (2 & c4.__u);
  if (null === c4 && null == e4 || a4 && e4 == c4.key && f5 == c4.type) return u5;
  if (t4 > (a4 ? 1 : 0)) {
    for (i4 = u5 - 1, r4 = u5 + 1; i4 >= 0 || r4 < l5.length; ) if (null != (c4 = l5[o4 = i4 >= 0 ? i4-- : r4++]) && 0 == (2 & c4.__u) && e4 == c4.key && f5 == c4.type) return o4;
  }
  return -1;
}
function z(n3, l5, u5) {
  "-" == l5[0] ? n3.setProperty(l5, null == u5 ? "" : u5) : n3[l5] = null == u5 ? "" : "number" != typeof u5 || _.test(l5) ? u5 : u5 + "px";
}
function N(n3, l5, u5, t4, i4) {
  var r4, o4;
  n: if ("style" == l5) if ("string" == typeof u5) n3.style.cssText = u5;
  else {
    if ("string" == typeof t4 && (n3.style.cssText = t4 = ""), t4) for (l5 in t4) u5 && l5 in u5 || z(n3.style, l5, "");
    if (u5) for (l5 in u5) t4 && u5[l5] == t4[l5] || z(n3.style, l5, u5[l5]);
  }
  else if ("o" == l5[0] && "n" == l5[1]) r4 = l5 != (l5 = l5.replace(s, "$1")), o4 = l5.toLowerCase(), l5 = o4 in n3 || "onFocusOut" == l5 || "onFocusIn" == l5 ? o4.slice(2) : l5.slice(2), n3.l || (n3.l = {}), n3.l[l5 + r4] = u5, u5 ? t4 ? u5[a] = t4[a] : (u5[a] = h, n3.addEventListener(l5, r4 ? v : p, r4)) : n3.removeEventListener(l5, r4 ? v : p, r4);
  else {
    if ("http://www.w3.org/2000/svg" == i4) l5 = l5.replace(/xlink(H|:h)/, "h").replace(/sName$/, "s");
    else if ("width" != l5 && "height" != l5 && "href" != l5 && "list" != l5 && "form" != l5 && "tabIndex" != l5 && "download" != l5 && "rowSpan" != l5 && "colSpan" != l5 && "role" != l5 && "popover" != l5 && l5 in n3) try {
      n3[l5] = null == u5 ? "" : u5;
      break n;
    } catch (n4) {
    }
    "function" == typeof u5 || (null == u5 || false === u5 && "-" != l5[4] ? n3.removeAttribute(l5) : n3.setAttribute(l5, "popover" == l5 && 1 == u5 ? "" : u5));
  }
}
function V(n3) {
  return function(u5) {
    if (this.l) {
      var t4 = this.l[u5.type + n3];
      if (null == u5[c]) u5[c] = h++;
      else if (u5[c] < t4[a]) return;
      return t4(l.event ? l.event(u5) : u5);
    }
  };
}
function q(n3, u5, t4, i4, r4, o4, e4, f5, c4, a4) {
  var s4, h5, p5, v4, y5, d4, _6, k4, x3, M3, I2, P2, A4, H2, T3, j4, F2 = u5.type;
  if (void 0 !== u5.constructor) return null;
  128 & t4.__u && (c4 = !!(32 & t4.__u), o4 = [f5 = u5.__e = t4.__e]), (s4 = l.__b) && s4(u5);
  n: if ("function" == typeof F2) {
    h5 = e4.length;
    try {
      if (x3 = u5.props, M3 = F2.prototype && F2.prototype.render, I2 = (s4 = F2.contextType) && i4[s4.__c], P2 = s4 ? I2 ? I2.props.value : s4.__ : i4, t4.__c ? k4 = (p5 = u5.__c = t4.__c).__ = p5.__E : (M3 ? u5.__c = p5 = new F2(x3, P2) : (u5.__c = p5 = new C(x3, P2), p5.constructor = F2, p5.render = Q), I2 && I2.sub(p5), p5.state || (p5.state = {}), p5.__n = i4, v4 = p5.__d = true, p5.__h = [], p5._sb = []), M3 && null == p5.__s && (p5.__s = p5.state), M3 && null != F2.getDerivedStateFromProps && (p5.__s == p5.state && (p5.__s = m({}, p5.__s)), m(p5.__s, F2.getDerivedStateFromProps(x3, p5.__s))), y5 = p5.props, d4 = p5.state, p5.__v = u5, v4) M3 && null == F2.getDerivedStateFromProps && null != p5.componentWillMount && p5.componentWillMount(), M3 && null != p5.componentDidMount && p5.__h.push(p5.componentDidMount);
      else {
        if (M3 && null == F2.getDerivedStateFromProps && x3 !== y5 && null != p5.componentWillReceiveProps && p5.componentWillReceiveProps(x3, P2), u5.__v == t4.__v || !p5.__e && null != p5.shouldComponentUpdate && false === p5.shouldComponentUpdate(x3, p5.__s, P2)) {
          u5.__v != t4.__v && (p5.props = x3, p5.state = p5.__s, p5.__d = false), u5.__e = t4.__e, u5.__k = t4.__k, u5.__k.some(function(n4) {
            n4 && (n4.__ = u5);
          }), w.push.apply(p5.__h, p5._sb), p5._sb = [], p5.__h.length && e4.push(p5), f5 = $(t4);
          break n;
        }
        null != p5.componentWillUpdate && p5.componentWillUpdate(x3, p5.__s, P2), M3 && null != p5.componentDidUpdate && p5.__h.push(function() {
          p5.componentDidUpdate(y5, d4, _6);
        });
      }
      if (p5.context = P2, p5.props = x3, p5.__P = n3, p5.__e = false, A4 = l.__r, H2 = 0, M3) p5.state = p5.__s, p5.__d = false, A4 && A4(u5), s4 = p5.render(p5.props, p5.state, p5.context), w.push.apply(p5.__h, p5._sb), p5._sb = [];
      else do {
        p5.__d = false, A4 && A4(u5), s4 = p5.render(p5.props, p5.state, p5.context), p5.state = p5.__s;
      } while (p5.__d && ++H2 < 25);
      p5.state = p5.__s, null != p5.getChildContext && (i4 = m(m({}, i4), p5.getChildContext())), M3 && !v4 && null != p5.getSnapshotBeforeUpdate && (_6 = p5.getSnapshotBeforeUpdate(y5, d4)), T3 = null != s4 && s4.type === S && null == s4.key ? E(s4.props.children) : s4, f5 = L(n3, g(T3) ? T3 : [T3], u5, t4, i4, r4, o4, e4, f5, c4, a4), p5.base = u5.__e, u5.__u &= -161, p5.__h.length && e4.push(p5), k4 && (p5.__E = p5.__ = null);
    } catch (n4) {
      if (e4.length = h5, u5.__v = null, c4 || null != o4) {
        if (n4.then) {
          for (u5.__u |= c4 ? 160 : 128; f5 && 8 == f5.nodeType && f5.nextSibling; ) f5 = f5.nextSibling;
          null != o4 && (o4[o4.indexOf(f5)] = null), u5.__e = f5;
        } else if (null != o4) for (j4 = o4.length; j4--; ) b(o4[j4]);
      } else u5.__e = t4.__e;
      null == u5.__k && (u5.__k = t4.__k || []), n4.then || B(u5), l.__e(n4, u5, t4);
    }
  } else null == o4 && u5.__v == t4.__v ? (u5.__k = t4.__k, u5.__e = t4.__e) : f5 = u5.__e = G(t4.__e, u5, t4, i4, r4, o4, e4, c4, a4);
  return (s4 = l.diffed) && s4(u5), 128 & u5.__u ? void 0 : f5;
}
function B(n3) {
  n3 && (n3.__c && (n3.__c.__e = true), n3.__k && n3.__k.some(B));
}
function D(n3, u5, t4) {
  for (var i4 = 0; i4 < t4.length; i4++) J(t4[i4], t4[++i4], t4[++i4]);
  l.__c && l.__c(u5, n3), n3.some(function(u6) {
    try {
      n3 = u6.__h, u6.__h = [], n3.some(function(n4) {
        n4.call(u6);
      });
    } catch (n4) {
      l.__e(n4, u6.__v);
    }
  });
}
function E(n3) {
  return "object" != typeof n3 || null == n3 || n3.__b > 0 ? n3 : g(n3) ? n3.map(E) : void 0 !== n3.constructor ? null : m({}, n3);
}
function G(u5, t4, i4, r4, o4, e4, f5, c4, a4) {
  var s4, h5, p5, v4, y5, w4, _6, m5 = i4.props || d, k4 = t4.props, x3 = t4.type;
  if ("svg" == x3 ? o4 = "http://www.w3.org/2000/svg" : "math" == x3 ? o4 = "http://www.w3.org/1998/Math/MathML" : o4 || (o4 = "http://www.w3.org/1999/xhtml"), null != e4) {
    for (s4 = 0; s4 < e4.length; s4++) if ((y5 = e4[s4]) && "setAttribute" in y5 == !!x3 && (x3 ? y5.localName == x3 : 3 == y5.nodeType)) {
      u5 = y5, e4[s4] = null;
      break;
    }
  }
  if (null == u5) {
    if (null == x3) return document.createTextNode(k4);
    u5 = document.createElementNS(o4, x3, k4.is && k4), c4 && (l.__m && l.__m(t4, e4), c4 = false), e4 = null;
  }
  if (null == x3) m5 === k4 || c4 && u5.data == k4 || (u5.data = k4);
  else {
    if (e4 = "textarea" == x3 && null != k4.defaultValue ? null : e4 && n.call(u5.childNodes), !c4 && null != e4) for (m5 = {}, s4 = 0; s4 < u5.attributes.length; s4++) m5[(y5 = u5.attributes[s4]).name] = y5.value;
    for (s4 in m5) y5 = m5[s4], "dangerouslySetInnerHTML" == s4 ? p5 = y5 : "children" == s4 || s4 in k4 || "value" == s4 && "defaultValue" in k4 || "checked" == s4 && "defaultChecked" in k4 || N(u5, s4, null, y5, o4);
    for (s4 in k4) y5 = k4[s4], "children" == s4 ? v4 = y5 : "dangerouslySetInnerHTML" == s4 ? h5 = y5 : "value" == s4 ? w4 = y5 : "checked" == s4 ? _6 = y5 : c4 && "function" != typeof y5 || m5[s4] === y5 || N(u5, s4, y5, m5[s4], o4);
    if (h5) c4 || p5 && (h5.__html == p5.__html || h5.__html == u5.innerHTML) || (u5.innerHTML = h5.__html), t4.__k = [];
    else if (p5 && (u5.innerHTML = ""), L("template" == t4.type ? u5.content : u5, g(v4) ? v4 : [v4], t4, i4, r4, "foreignObject" == x3 ? "http://www.w3.org/1999/xhtml" : o4, e4, f5, e4 ? e4[0] : i4.__k && $(i4, 0), c4, a4), null != e4) for (s4 = e4.length; s4--; ) b(e4[s4]);
    c4 && "textarea" != x3 || (s4 = "value", "progress" == x3 && null == w4 ? u5.removeAttribute("value") : null != w4 && (w4 !== u5[s4] || "progress" == x3 && !w4 || "option" == x3 && w4 != m5[s4]) && N(u5, s4, w4, m5[s4], o4), s4 = "checked", null != _6 && _6 != u5[s4] && N(u5, s4, _6, m5[s4], o4));
  }
  return u5;
}
function J(n3, u5, t4) {
  try {
    if ("function" == typeof n3) {
      var i4 = "function" == typeof n3.__u;
      i4 && n3.__u(), i4 && null == u5 || (n3.__u = n3(u5));
    } else n3.current = u5;
  } catch (n4) {
    l.__e(n4, t4);
  }
}
function K(n3, u5, t4) {
  var i4, r4;
  if (l.unmount && l.unmount(n3), (i4 = n3.ref) && (i4.current && i4.current != n3.__e || J(i4, null, u5)), null != (i4 = n3.__c)) {
    if (i4.componentWillUnmount) try {
      i4.componentWillUnmount();
    } catch (n4) {
      l.__e(n4, u5);
    }
    i4.base = i4.__P = i4.__n = null;
  }
  if (i4 = n3.__k) for (r4 = 0; r4 < i4.length; r4++) i4[r4] && K(i4[r4], u5, t4 || "function" != typeof n3.type);
  t4 || b(n3.__e), n3.__c = n3.__ = n3.__e = void 0;
}
function Q(n3, l5, u5) {
  return this.constructor(n3, u5);
}
function R(u5, t4, i4) {
  var r4, o4, e4, f5;
  t4 == document && (t4 = document.documentElement), l.__ && l.__(u5, t4), o4 = (r4 = "function" == typeof i4) ? null : i4 && i4.__k || t4.__k, e4 = [], f5 = [], q(t4, u5 = (!r4 && i4 || t4).__k = k(S, null, [u5]), o4 || d, d, t4.namespaceURI, !r4 && i4 ? [i4] : o4 ? null : t4.firstChild ? n.call(t4.childNodes) : null, e4, !r4 && i4 ? i4 : o4 ? o4.__e : t4.firstChild, r4, f5), D(e4, u5, f5), u5.props.children = null;
}
n = w.slice, l = { __e: function(n3, l5, u5, t4) {
  for (var i4, r4, o4; l5 = l5.__; ) if ((i4 = l5.__c) && !i4.__) try {
    if ((r4 = i4.constructor) && null != r4.getDerivedStateFromError && (i4.setState(r4.getDerivedStateFromError(n3)), o4 = i4.__d), null != i4.componentDidCatch && (i4.componentDidCatch(n3, t4 || {}), o4 = i4.__d), o4) return i4.__E = i4;
  } catch (l6) {
    n3 = l6;
  }
  throw n3;
} }, u = 0, t = function(n3) {
  return null != n3 && void 0 === n3.constructor;
}, C.prototype.setState = function(n3, l5) {
  var u5;
  u5 = null != this.__s && this.__s != this.state ? this.__s : this.__s = m({}, this.state), "function" == typeof n3 && (n3 = n3(m({}, u5), this.props)), n3 && m(u5, n3), null != n3 && this.__v && (l5 && this._sb.push(l5), A(this));
}, C.prototype.forceUpdate = function(n3) {
  this.__v && (this.__e = true, n3 && this.__h.push(n3), A(this));
}, C.prototype.render = S, i = [], o = "function" == typeof Promise ? Promise.prototype.then.bind(Promise.resolve()) : setTimeout, e = function(n3, l5) {
  return n3.__v.__b - l5.__v.__b;
}, H.__r = 0, f = Math.random().toString(8), c = "__d" + f, a = "__a" + f, s = /(PointerCapture)$|Capture$/i, h = 0, p = V(false), v = V(true), y = 0;

// node_modules/preact/hooks/dist/hooks.module.js
var t2;
var r2;
var u2;
var i2;
var o2 = 0;
var f2 = [];
var c2 = l;
var e2 = c2.__b;
var a2 = c2.__r;
var v2 = c2.diffed;
var l2 = c2.__c;
var m2 = c2.unmount;
var p2 = c2.__;
function s2(n3, t4) {
  c2.__h && c2.__h(r2, n3, o2 || t4), o2 = 0;
  var u5 = r2.__H || (r2.__H = { __: [], __h: [] });
  return n3 >= u5.__.length && u5.__.push({}), u5.__[n3];
}
function d2(n3) {
  return o2 = 1, y2(D2, n3);
}
function y2(n3, u5, i4) {
  var o4 = s2(t2++, 2);
  if (o4.t = n3, !o4.__c && (o4.__ = [i4 ? i4(u5) : D2(void 0, u5), function(n4) {
    var t4 = o4.__N ? o4.__N[0] : o4.__[0], r4 = o4.t(t4, n4);
    t4 !== r4 && (o4.__N = [r4, o4.__[1]], o4.__c.setState({}));
  }], o4.__c = r2, !r2.__f)) {
    var f5 = function(n4, t4, r4) {
      if (!o4.__c.__H) return true;
      var u6 = false, i5 = o4.__c.props !== n4;
      if (o4.__c.__H.__.some(function(n5) {
        if (n5.__N) {
          u6 = true;
          var t5 = n5.__[0];
          n5.__ = n5.__N, n5.__N = void 0, t5 !== n5.__[0] && (i5 = true);
        }
      }), c4) {
        var f6 = c4.call(this, n4, t4, r4);
        return u6 ? f6 || i5 : f6;
      }
      return !u6 || i5;
    };
    r2.__f = true;
    var c4 = r2.shouldComponentUpdate, e4 = r2.componentWillUpdate;
    r2.componentWillUpdate = function(n4, t4, r4) {
      if (this.__e) {
        var u6 = c4;
        c4 = void 0, f5(n4, t4, r4), c4 = u6;
      }
      e4 && e4.call(this, n4, t4, r4);
    }, r2.shouldComponentUpdate = f5;
  }
  return o4.__N || o4.__;
}
function h2(n3, u5) {
  var i4 = s2(t2++, 3);
  !c2.__s && C2(i4.__H, u5) && (i4.__ = n3, i4.u = u5, r2.__H.__h.push(i4));
}
function _2(n3, u5) {
  var i4 = s2(t2++, 4);
  !c2.__s && C2(i4.__H, u5) && (i4.__ = n3, i4.u = u5, r2.__h.push(i4));
}
function A2(n3) {
  return o2 = 5, T2(function() {
    return { current: n3 };
  }, []);
}
function T2(n3, r4) {
  var u5 = s2(t2++, 7);
  return C2(u5.__H, r4) && (u5.__ = n3(), u5.__H = r4, u5.__h = n3), u5.__;
}
function q2(n3, t4) {
  return o2 = 8, T2(function() {
    return n3;
  }, t4);
}
function j2() {
  for (var n3; n3 = f2.shift(); ) {
    var t4 = n3.__H;
    if (n3.__P && t4) try {
      t4.__h.some(z2), t4.__h.some(B2), t4.__h = [];
    } catch (r4) {
      t4.__h = [], c2.__e(r4, n3.__v);
    }
  }
}
c2.__b = function(n3) {
  r2 = null, e2 && e2(n3);
}, c2.__ = function(n3, t4) {
  n3 && t4.__k && t4.__k.__m && (n3.__m = t4.__k.__m), p2 && p2(n3, t4);
}, c2.__r = function(n3) {
  a2 && a2(n3), t2 = 0;
  var i4 = (r2 = n3.__c).__H;
  i4 && (u2 === r2 ? (i4.__h = [], r2.__h = [], i4.__.some(function(n4) {
    n4.__N && (n4.__ = n4.__N), n4.u = n4.__N = void 0;
  })) : (i4.__h.some(z2), i4.__h.some(B2), i4.__h = [], t2 = 0)), u2 = r2;
}, c2.diffed = function(n3) {
  v2 && v2(n3);
  var t4 = n3.__c;
  t4 && t4.__H && (t4.__H.__h.length && (1 !== f2.push(t4) && i2 === c2.requestAnimationFrame || ((i2 = c2.requestAnimationFrame) || w2)(j2)), t4.__H.__.some(function(n4) {
    n4.u && (n4.__H = n4.u, n4.u = void 0);
  })), u2 = r2 = null;
}, c2.__c = function(n3, t4) {
  t4.some(function(n4) {
    try {
      n4.__h.some(z2), n4.__h = n4.__h.filter(function(n5) {
        return !n5.__ || B2(n5);
      });
    } catch (r4) {
      t4.some(function(n5) {
        n5.__h && (n5.__h = []);
      }), t4 = [], c2.__e(r4, n4.__v);
    }
  }), l2 && l2(n3, t4);
}, c2.unmount = function(n3) {
  m2 && m2(n3);
  var t4, r4 = n3.__c;
  r4 && r4.__H && (r4.__H.__.some(function(n4) {
    try {
      z2(n4);
    } catch (n5) {
      t4 = n5;
    }
  }), r4.__H = void 0, t4 && c2.__e(t4, r4.__v));
};
var k2 = "function" == typeof requestAnimationFrame;
function w2(n3) {
  var t4, r4 = function() {
    clearTimeout(u5), k2 && cancelAnimationFrame(t4), setTimeout(n3);
  }, u5 = setTimeout(r4, 35);
  k2 && (t4 = requestAnimationFrame(r4));
}
function z2(n3) {
  var t4 = r2, u5 = n3.__c;
  "function" == typeof u5 && (n3.__c = void 0, u5()), r2 = t4;
}
function B2(n3) {
  var t4 = r2;
  n3.__c = n3.__(), r2 = t4;
}
function C2(n3, t4) {
  return !n3 || n3.length !== t4.length || t4.some(function(t5, r4) {
    return t5 !== n3[r4];
  });
}
function D2(n3, t4) {
  return "function" == typeof t4 ? t4(n3) : t4;
}

// node_modules/@preact/signals-core/dist/signals-core.module.js
var i3 = Symbol.for("preact-signals");
function t3() {
  if (!(v3 > 1)) {
    var i4, t4 = false;
    !(function() {
      var i5 = c3;
      c3 = void 0;
      while (void 0 !== i5) {
        var t5 = i5.S;
        if (t5.v === i5.v) {
          for (var r5 = t5.t; void 0 !== r5; r5 = r5.x) if (r5.i === i5.i) r5.i = t5.i;
        }
        i5 = i5.o;
      }
    })();
    while (void 0 !== h3) {
      var r4 = h3;
      h3 = void 0;
      s3++;
      while (void 0 !== r4) {
        var n3 = r4.u;
        r4.u = void 0;
        r4.f &= -3;
        if (!(8 & r4.f) && w3(r4)) try {
          r4.c();
        } catch (r5) {
          if (!t4) {
            i4 = r5;
            t4 = true;
          }
        }
        r4 = n3;
      }
    }
    s3 = 0;
    v3--;
    if (t4) throw i4;
  } else v3--;
}
function r3(i4) {
  if (v3 > 0) return i4();
  u3 = ++e3;
  v3++;
  try {
    return i4();
  } finally {
    t3();
  }
}
var n2;
var o3 = void 0;
function f3(i4) {
  var t4 = o3, r4 = n2;
  o3 = void 0;
  n2 = void 0;
  try {
    return i4();
  } finally {
    o3 = t4;
    n2 = r4;
  }
}
var h3 = void 0;
var v3 = 0;
var s3 = 0;
var e3 = 0;
var u3 = 0;
var c3 = void 0;
var a3 = 0;
function d3(i4) {
  if (void 0 !== o3) {
    var t4 = i4.n;
    if (void 0 === t4 || t4.t !== o3) {
      t4 = { i: 0, S: i4, p: o3.s, n: void 0, t: o3, e: void 0, x: void 0, r: t4 };
      if (void 0 !== o3.s) o3.s.n = t4;
      o3.s = t4;
      i4.n = t4;
      if (32 & o3.f) i4.S(t4);
      return t4;
    } else if (-1 === t4.i) {
      t4.i = 0;
      if (void 0 !== t4.n) {
        t4.n.p = t4.p;
        if (void 0 !== t4.p) t4.p.n = t4.n;
        t4.p = o3.s;
        t4.n = void 0;
        o3.s.n = t4;
        o3.s = t4;
      }
      return t4;
    }
  }
}
function l3(i4, t4) {
  this.v = i4;
  this.i = 0;
  this.n = void 0;
  this.t = void 0;
  this.l = 0;
  this.W = null == t4 ? void 0 : t4.watched;
  this.Z = null == t4 ? void 0 : t4.unwatched;
  this.name = null == t4 ? void 0 : t4.name;
}
l3.prototype.brand = i3;
l3.prototype.h = function() {
  return true;
};
l3.prototype.S = function(i4) {
  var t4 = this, r4 = this.t;
  if (r4 !== i4 && void 0 === i4.e) {
    i4.x = r4;
    this.t = i4;
    if (void 0 !== r4) r4.e = i4;
    else f3(function() {
      var i5;
      null == (i5 = t4.W) || i5.call(t4);
    });
  }
};
l3.prototype.U = function(i4) {
  var t4 = this;
  if (void 0 !== this.t) {
    var r4 = i4.e, n3 = i4.x;
    if (void 0 !== r4) {
      r4.x = n3;
      i4.e = void 0;
    }
    if (void 0 !== n3) {
      n3.e = r4;
      i4.x = void 0;
    }
    if (i4 === this.t) {
      this.t = n3;
      if (void 0 === n3) f3(function() {
        var i5;
        null == (i5 = t4.Z) || i5.call(t4);
      });
    }
  }
};
l3.prototype.subscribe = function(i4) {
  var t4 = this;
  return x2(function() {
    var r4 = t4.value;
    f3(function() {
      return i4(r4);
    });
  }, { name: "sub" });
};
l3.prototype.valueOf = function() {
  return this.value;
};
l3.prototype.toString = function() {
  return this.value + "";
};
l3.prototype.toJSON = function() {
  return this.value;
};
l3.prototype.peek = function() {
  var i4 = this;
  return f3(function() {
    return i4.value;
  });
};
Object.defineProperty(l3.prototype, "value", { get: function() {
  var i4 = d3(this);
  if (void 0 !== i4) i4.i = this.i;
  return this.v;
}, set: function(i4) {
  if (i4 !== this.v) {
    if (s3 > 100) throw new Error("Cycle detected");
    !(function(i5) {
      if (0 !== v3 && 0 === s3) {
        if (i5.l !== u3) {
          i5.l = u3;
          c3 = { S: i5, v: i5.v, i: i5.i, o: c3 };
        }
      }
    })(this);
    this.v = i4;
    this.i++;
    a3++;
    v3++;
    try {
      for (var r4 = this.t; void 0 !== r4; r4 = r4.x) r4.t.N();
    } finally {
      t3();
    }
  }
} });
function y3(i4, t4) {
  return new l3(i4, t4);
}
function w3(i4) {
  for (var t4 = i4.s; void 0 !== t4; t4 = t4.n) if (t4.S.i !== t4.i || !t4.S.h() || t4.S.i !== t4.i) return true;
  return false;
}
function b2(i4) {
  for (var t4 = i4.s; void 0 !== t4; t4 = t4.n) {
    var r4 = t4.S.n;
    if (void 0 !== r4) t4.r = r4;
    t4.S.n = t4;
    t4.i = -1;
    if (void 0 === t4.n) {
      i4.s = t4;
      break;
    }
  }
}
function _3(i4) {
  var t4 = i4.s, r4 = void 0;
  while (void 0 !== t4) {
    var n3 = t4.p;
    if (-1 === t4.i) {
      t4.S.U(t4);
      if (void 0 !== n3) n3.n = t4.n;
      if (void 0 !== t4.n) t4.n.p = n3;
    } else r4 = t4;
    t4.S.n = t4.r;
    if (void 0 !== t4.r) t4.r = void 0;
    t4 = n3;
  }
  i4.s = r4;
}
function j3(i4, t4) {
  l3.call(this, void 0, t4);
  this.x = i4;
  this.s = void 0;
  this.g = a3 - 1;
  this.f = 4;
}
j3.prototype = new l3();
j3.prototype.h = function() {
  this.f &= -3;
  if (1 & this.f) return false;
  if (32 == (36 & this.f)) return true;
  this.f &= -5;
  if (this.g === a3) return true;
  this.g = a3;
  this.f |= 1;
  if (this.i > 0 && !w3(this)) {
    this.f &= -2;
    return true;
  }
  var i4 = o3;
  try {
    b2(this);
    o3 = this;
    var t4 = this.x();
    if (16 & this.f || this.v !== t4 || 0 === this.i) {
      this.v = t4;
      this.f &= -17;
      this.i++;
    }
  } catch (i5) {
    this.v = i5;
    this.f |= 16;
    this.i++;
  }
  o3 = i4;
  _3(this);
  this.f &= -2;
  return true;
};
j3.prototype.S = function(i4) {
  if (void 0 === this.t) {
    this.f |= 36;
    for (var t4 = this.s; void 0 !== t4; t4 = t4.n) t4.S.S(t4);
  }
  l3.prototype.S.call(this, i4);
};
j3.prototype.U = function(i4) {
  if (void 0 !== this.t) {
    l3.prototype.U.call(this, i4);
    if (void 0 === this.t) {
      this.f &= -33;
      for (var t4 = this.s; void 0 !== t4; t4 = t4.n) t4.S.U(t4);
    }
  }
};
j3.prototype.N = function() {
  if (!(2 & this.f)) {
    this.f |= 6;
    for (var i4 = this.t; void 0 !== i4; i4 = i4.x) i4.t.N();
  }
};
Object.defineProperty(j3.prototype, "value", { get: function() {
  if (1 & this.f) throw new Error("Cycle detected");
  var i4 = d3(this);
  this.h();
  if (void 0 !== i4) i4.i = this.i;
  if (16 & this.f) throw this.v;
  return this.v;
} });
function O2(i4, t4) {
  return new j3(i4, t4);
}
function p3(i4) {
  var r4 = i4.j;
  i4.j = void 0;
  if ("function" == typeof r4) {
    v3++;
    var n3 = o3;
    o3 = void 0;
    try {
      r4();
    } catch (t4) {
      i4.f &= -2;
      i4.f |= 8;
      g2(i4);
      throw t4;
    } finally {
      o3 = n3;
      t3();
    }
  }
}
function g2(i4) {
  for (var t4 = i4.s; void 0 !== t4; t4 = t4.n) t4.S.U(t4);
  i4.x = void 0;
  i4.s = void 0;
  p3(i4);
}
function S2(i4) {
  if (o3 !== this) throw new Error("Out-of-order effect");
  _3(this);
  o3 = i4;
  this.f &= -2;
  try {
    if (8 & this.f) g2(this);
  } finally {
    t3();
  }
}
function m3(i4, t4) {
  this.x = i4;
  this.j = void 0;
  this.s = void 0;
  this.u = void 0;
  this.f = 32;
  this.name = null == t4 ? void 0 : t4.name;
  if (n2) n2.push(this);
}
m3.prototype.c = function() {
  var i4 = this.S();
  try {
    if (8 & this.f) return;
    if (void 0 === this.x) return;
    var t4 = this.x();
    if ("function" == typeof t4) this.j = t4;
  } finally {
    i4();
  }
};
m3.prototype.S = function() {
  if (1 & this.f) throw new Error("Cycle detected");
  this.f |= 1;
  this.f &= -9;
  p3(this);
  b2(this);
  v3++;
  var i4 = o3;
  o3 = this;
  return S2.bind(this, i4);
};
m3.prototype.N = function() {
  if (!(2 & this.f)) {
    this.f |= 2;
    this.u = h3;
    h3 = this;
  }
};
m3.prototype.d = function() {
  this.f |= 8;
  if (!(1 & this.f)) g2(this);
};
m3.prototype.dispose = function() {
  this.d();
};
function x2(i4, t4) {
  var r4 = new m3(i4, t4);
  try {
    r4.c();
  } catch (i5) {
    r4.d();
    throw i5;
  }
  var n3 = r4.d.bind(r4);
  n3[Symbol.dispose] = n3;
  return n3;
}

// node_modules/@preact/signals/dist/signals.module.js
var h4;
var l4;
var p4;
var m4 = "undefined" != typeof window && !!window.__PREACT_SIGNALS_DEVTOOLS__;
var _4 = [];
x2(function() {
  h4 = this.N;
})();
function g3(i4, t4) {
  l[i4] = t4.bind(null, l[i4] || function() {
  });
}
function y4(i4) {
  if (p4) p4();
  p4 = i4 && i4.S();
}
function b3(i4) {
  var n3 = this, r4 = i4.data, o4 = useSignal(r4);
  o4.value = r4;
  var e4 = T2(function() {
    var i5 = n3, r5 = n3.__v;
    while (r5 = r5.__) if (r5.__c) {
      r5.__c.__$f |= 4;
      break;
    }
    var f5 = O2(function() {
      var i6 = o4.value.value;
      return 0 === i6 ? 0 : true === i6 ? "" : i6 || "";
    }), e5 = O2(function() {
      return !Array.isArray(f5.value) && !t(f5.value);
    }), u6 = x2(function() {
      this.N = M;
      if (e5.value) {
        var n4 = f5.value;
        if (i5.__v && i5.__v.__e && 3 === i5.__v.__e.nodeType) i5.__v.__e.data = n4;
      }
    }), c5 = n3.__$u.d;
    n3.__$u.d = function() {
      u6();
      c5.call(this);
    };
    return [e5, f5];
  }, []), u5 = e4[0], c4 = e4[1];
  return u5.value ? c4.peek() : c4.value;
}
b3.displayName = "ReactiveTextNode";
Object.defineProperties(l3.prototype, { constructor: { configurable: true, value: void 0 }, type: { configurable: true, value: b3 }, props: { configurable: true, get: function() {
  return { data: this };
} }, __b: { configurable: true, value: 1 } });
g3("__b", function(i4, n3) {
  if (m4 && "function" == typeof n3.type) window.__PREACT_SIGNALS_DEVTOOLS__.exitComponent();
  if ("string" == typeof n3.type) {
    var t4, r4 = n3.props;
    for (var f5 in r4) if ("children" !== f5) {
      var o4 = r4[f5];
      if (o4 instanceof l3) {
        if (!t4) n3.__np = t4 = {};
        t4[f5] = o4;
        r4[f5] = o4.peek();
      }
    }
  }
  i4(n3);
});
g3("__r", function(i4, n3) {
  if (m4 && "function" == typeof n3.type) window.__PREACT_SIGNALS_DEVTOOLS__.enterComponent(n3);
  if (n3.type !== S) {
    y4();
    var t4, f5 = n3.__c;
    if (f5) {
      f5.__$f &= -2;
      if (void 0 === (t4 = f5.__$u)) f5.__$u = t4 = (function(i5) {
        var n4;
        x2(function() {
          n4 = this;
        });
        n4.c = function() {
          f5.__$f |= 1;
          f5.setState({});
        };
        return n4;
      })();
    }
    l4 = f5;
    y4(t4);
  }
  i4(n3);
});
g3("__e", function(i4, n3, t4, r4) {
  if (m4) window.__PREACT_SIGNALS_DEVTOOLS__.exitComponent();
  y4();
  l4 = void 0;
  i4(n3, t4, r4);
});
g3("diffed", function(i4, n3) {
  if (m4 && "function" == typeof n3.type) window.__PREACT_SIGNALS_DEVTOOLS__.exitComponent();
  y4();
  l4 = void 0;
  var t4;
  if ("string" == typeof n3.type && (t4 = n3.__e)) {
    var r4 = n3.__np, f5 = n3.props;
    if (r4) {
      var o4 = t4.U;
      if (o4) for (var e4 in o4) {
        var u5 = o4[e4];
        if (void 0 !== u5 && !(e4 in r4)) {
          u5.d();
          o4[e4] = void 0;
        }
      }
      else {
        o4 = {};
        t4.U = o4;
      }
      for (var a4 in r4) {
        var c4 = o4[a4], v4 = r4[a4];
        if (void 0 === c4) {
          c4 = k3(t4, a4, v4, f5);
          o4[a4] = c4;
        } else c4.o(v4, f5);
      }
    }
  }
  i4(n3);
});
function k3(i4, n3, t4, r4) {
  var f5 = n3 in i4 && void 0 === i4.ownerSVGElement, o4 = y3(t4);
  return { o: function(i5, n4) {
    o4.value = i5;
    r4 = n4;
  }, d: x2(function() {
    this.N = M;
    var t5 = o4.value.value;
    if (r4[n3] !== t5) {
      r4[n3] = t5;
      if (f5) i4[n3] = t5;
      else if (null != t5 && (false !== t5 || "-" === n3[4])) i4.setAttribute(n3, t5);
      else i4.removeAttribute(n3);
    }
  }) };
}
g3("unmount", function(i4, n3) {
  if ("string" == typeof n3.type) {
    var t4 = n3.__e;
    if (t4) {
      var r4 = t4.U;
      if (r4) {
        t4.U = void 0;
        for (var f5 in r4) {
          var o4 = r4[f5];
          if (o4) o4.d();
        }
      }
    }
  } else {
    var e4 = n3.__c;
    if (e4) {
      var u5 = e4.__$u;
      if (u5) {
        e4.__$u = void 0;
        u5.d();
      }
    }
  }
  i4(n3);
});
g3("__h", function(i4, n3, t4, r4) {
  if (r4 < 3 || 9 === r4) n3.__$f |= 2;
  i4(n3, t4, r4);
});
C.prototype.shouldComponentUpdate = function(i4, n3) {
  var t4 = this.__$u, r4 = t4 && void 0 !== t4.s;
  for (var f5 in n3) return true;
  if (this.__f || "boolean" == typeof this.u && true === this.u) {
    var o4 = 2 & this.__$f;
    if (!(r4 || o4 || 4 & this.__$f)) return true;
    if (1 & this.__$f) return true;
  } else {
    if (!(r4 || 4 & this.__$f)) return true;
    if (3 & this.__$f) return true;
  }
  for (var e4 in i4) if ("__source" !== e4 && i4[e4] !== this.props[e4]) return true;
  for (var u5 in this.props) if (!(u5 in i4)) return true;
  return false;
};
function useSignal(i4, n3) {
  return d2(function() {
    return y3(i4, n3);
  })[0];
}
var A3 = function(i4) {
  queueMicrotask(function() {
    queueMicrotask(i4);
  });
};
function F() {
  r3(function() {
    var i4;
    while (i4 = _4.shift()) h4.call(i4);
  });
}
function M() {
  if (1 === _4.push(this)) (l.requestAnimationFrame || A3)(F);
}

// src/api.ts
var API = "/api/v1";
var online = y3(true);
var needsLogin = y3(false);
var me = y3(null);
var ApiError = class extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
};
function address(path, values = {}, query2 = {}) {
  const filled = path.replace(/\{(\w+)\}/g, (_6, name) => encodeURIComponent(String(values[name] ?? "")));
  const words2 = new URLSearchParams();
  for (const [name, value] of Object.entries(query2)) {
    if (value !== void 0 && value !== null && value !== "") words2.set(name, String(value));
  }
  const text = words2.toString();
  return API + filled + (text ? `?${text}` : "");
}
async function call(key, options2 = {}) {
  const [method, path] = key.split(" ");
  const request = { method, credentials: "same-origin" };
  if (options2.signal) request.signal = options2.signal;
  const headers = {};
  if (options2.body !== void 0) {
    request.body = JSON.stringify(options2.body);
    headers["content-type"] = "application/json";
  }
  if (method !== "GET" && !/token|session|validate|what-if/.test(path)) {
    headers["idempotency-key"] = crypto.getRandomValues(new Uint32Array(4)).join("-");
  }
  request.headers = headers;
  let response;
  try {
    response = await fetch(address(path, options2.path, options2.query), request);
  } catch (error) {
    if (!(error instanceof DOMException && error.name === "AbortError")) online.value = false;
    throw error;
  }
  online.value = true;
  if (!response.ok) throw await asError(response);
  return await response.json();
}
async function asError(response) {
  let form = {};
  try {
    form = await response.json();
  } catch {
  }
  if (response.status === 401) needsLogin.value = true;
  return new ApiError(response.status, form.code ?? "", form.error ?? `the server answered ${response.status}`);
}
function useLive(ask2, everyMs, inputs) {
  const [state, setState] = d2({ data: null, error: null });
  const again = A2(() => void 0);
  h2(() => {
    const stop = new AbortController();
    let timer = 0;
    let busy = false;
    const run = async () => {
      clearTimeout(timer);
      if (busy) return;
      busy = true;
      try {
        const data = await ask2(stop.signal);
        if (!stop.signal.aborted) setState({ data, error: null });
      } catch (error) {
        if (!stop.signal.aborted && error instanceof ApiError) setState((old) => ({ data: old.data, error }));
      }
      busy = false;
      if (!stop.signal.aborted && everyMs > 0) timer = window.setTimeout(run, document.hidden ? everyMs * 10 : everyMs);
    };
    const wake = () => {
      if (!document.hidden && everyMs > 0) void run();
    };
    again.current = () => void run();
    document.addEventListener("visibilitychange", wake);
    void run();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    };
  }, inputs);
  return { ...state, refresh: () => again.current() };
}

// src/format.ts
var clock = new Intl.DateTimeFormat(void 0, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
var day = new Intl.DateTimeFormat(void 0, { weekday: "short", day: "numeric", month: "short" });
function duration(seconds) {
  const s4 = Math.max(0, Math.round(seconds));
  if (s4 < 60) return `${s4} s`;
  if (s4 < 3600) return `${Math.floor(s4 / 60)} min${s4 % 60 && s4 < 180 ? ` ${s4 % 60} s` : ""}`;
  if (s4 < 86400) return `${Math.floor(s4 / 3600)} h${Math.floor(s4 % 3600 / 60) ? ` ${Math.floor(s4 % 3600 / 60)} min` : ""}`;
  return `${Math.floor(s4 / 86400)} d${Math.floor(s4 % 86400 / 3600) ? ` ${Math.floor(s4 % 86400 / 3600)} h` : ""}`;
}
function time(text) {
  if (!text) return "–";
  const at = new Date(text);
  return at.toDateString() === (/* @__PURE__ */ new Date()).toDateString() ? clock.format(at) : `${day.format(at)}, ${clock.format(at)}`;
}
function since(text, until2 = Date.now()) {
  return text ? duration((until2 - Date.parse(text)) / 1e3) : "–";
}
function until(text) {
  if (!text) return "–";
  const seconds = (Date.parse(text) - Date.now()) / 1e3;
  return seconds <= 5 ? "now" : `in ${duration(seconds)}`;
}
function untilRange(text, earliest, latest) {
  if (!text || !earliest || !latest || isNarrow(earliest, latest)) return until(text);
  const [first, last] = [until(earliest), until(latest)];
  if (first === last) return first;
  return last === "now" ? "now" : `${first} to ${last.replace(/^in /, "")}`;
}
var NARROW_MS = 6e5;
function isNarrow(earliest, latest) {
  return Date.parse(latest) - Date.parse(earliest) < NARROW_MS;
}
function startTime(of) {
  const { expected_start: likely, expected_start_earliest: earliest, expected_start_latest: latest } = of;
  const text = `${time(likely)} (${until(likely)})`;
  if (!likely || !earliest || !latest || isNarrow(earliest, latest)) return text;
  return `likely ${text}, 80 % of such jobs start from ${time(earliest)} to ${time(latest)}`;
}
function memory(mb) {
  if (mb === null || mb === void 0) return "–";
  return mb < 1024 ? `${mb} MB` : `${trim(mb / 1024, mb < 10240 ? 1 : 0)} GB`;
}
function trim(value, digits = 2) {
  return String(Number(value.toFixed(digits)));
}
function count(value) {
  return value.toLocaleString("en-GB").replaceAll(",", " ");
}
function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
function hue(name) {
  let hash = 2166136261;
  for (let i4 = 0; i4 < name.length; i4 += 1) hash = Math.imul(hash ^ name.charCodeAt(i4), 16777619);
  return (hash >>> 0) * 137.508 % 360;
}

// node_modules/preact/jsx-runtime/dist/jsxRuntime.module.js
var f4 = 0;
function u4(e4, t4, n3, o4, i4, u5) {
  t4 || (t4 = {});
  var a4, c4, p5 = t4;
  if ("ref" in p5) for (c4 in p5 = {}, t4) "ref" == c4 ? a4 = t4[c4] : p5[c4] = t4[c4];
  var l5 = { type: e4, props: p5, key: n3, ref: a4, __k: null, __: null, __b: 0, __e: null, __c: null, constructor: void 0, __v: --f4, __i: -1, __u: 0, __source: i4, __self: u5 };
  if ("function" == typeof e4 && (a4 = e4.defaultProps)) for (c4 in a4) void 0 === p5[c4] && (p5[c4] = a4[c4]);
  return l.vnode && l.vnode(l5), l5;
}

// src/components.tsx
function State({ state }) {
  return /* @__PURE__ */ u4("span", { class: `state state-${state.replace(/[^a-z-]/g, "")}`, children: state });
}
function Who({ name }) {
  const dot = A2(null);
  _2(() => dot.current?.style.setProperty("--hue", String(hue(name))), [name]);
  return /* @__PURE__ */ u4("span", { class: "who", children: [
    /* @__PURE__ */ u4("span", { class: "dot", ref: dot, "aria-hidden": "true" }),
    name
  ] });
}
function JobLink({ id, children }) {
  return /* @__PURE__ */ u4("a", { href: `#/jobs/${encodeURIComponent(id)}`, children: children ?? id });
}
function Meter({ label, value, text, tone }) {
  const bar = A2(null);
  _2(() => bar.current?.style.setProperty("--part", String(Math.min(1, Math.max(0, value ?? 0)))), [value]);
  return /* @__PURE__ */ u4("div", { class: "meter", children: [
    /* @__PURE__ */ u4("span", { class: "meter-label", children: label }),
    /* @__PURE__ */ u4("span", { class: `meter-bar ${tone ?? ""} ${value === null ? "meter-none" : ""}`, ref: bar, "aria-hidden": "true" }),
    /* @__PURE__ */ u4("span", { class: "meter-text", children: text })
  ] });
}
function Empty({ title, children }) {
  return /* @__PURE__ */ u4("div", { class: "empty", children: [
    /* @__PURE__ */ u4("h2", { children: title }),
    children
  ] });
}
function Problem({ error }) {
  return error && error.status !== 401 ? /* @__PURE__ */ u4("p", { class: "note note-bad", role: "alert", children: error.message }) : null;
}
function Facts({ of }) {
  return /* @__PURE__ */ u4("dl", { class: "facts", children: of.filter(([, value]) => value !== null && value !== void 0 && value !== "" && !(Array.isArray(value) && value.length === 0)).map(([name, value]) => /* @__PURE__ */ u4("div", { children: [
    /* @__PURE__ */ u4("dt", { children: name }),
    /* @__PURE__ */ u4("dd", { children: value })
  ] }, name)) });
}
function Figures({ of }) {
  return /* @__PURE__ */ u4("ul", { class: "figures", children: of.map(([value, name, link, foot]) => /* @__PURE__ */ u4("li", { children: [
    /* @__PURE__ */ u4("strong", { children: value }),
    link ? /* @__PURE__ */ u4("a", { href: link, children: name }) : /* @__PURE__ */ u4("span", { children: name }),
    foot ? /* @__PURE__ */ u4("small", { class: "muted", children: foot }) : null
  ] }, name)) });
}
function Code({ text }) {
  const copy2 = () => {
    void navigator.clipboard?.writeText(text).then(() => notify("Copied."));
  };
  return /* @__PURE__ */ u4("div", { class: "code", children: [
    /* @__PURE__ */ u4("pre", { tabIndex: 0, children: text }),
    /* @__PURE__ */ u4("button", { type: "button", class: "small", onClick: copy2, children: "Copy" })
  ] });
}
function Table({ columns, rows, id, label }) {
  return /* @__PURE__ */ u4("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label, children: /* @__PURE__ */ u4("table", { children: [
    /* @__PURE__ */ u4("thead", { children: /* @__PURE__ */ u4("tr", { children: columns.map((column) => /* @__PURE__ */ u4("th", { scope: "col", title: column.title, class: `${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`, children: column.name }, column.key ?? column.name)) }) }),
    /* @__PURE__ */ u4("tbody", { children: rows.map((row) => /* @__PURE__ */ u4("tr", { children: columns.map((column) => /* @__PURE__ */ u4("td", { class: `${column.right ? "right" : ""} ${column.grow ? "grow" : ""} ${column.wrap ? "wrap" : ""}`, children: column.of(row) }, column.key ?? column.name)) }, id(row))) })
  ] }) });
}
var ROW_PX = 34;
var SPARE_ROWS = 12;
function WindowedTable(props) {
  const { columns, total, offset, rows, id, label, sort, onSort, onWindow, rowClass, current } = props;
  const box = A2(null);
  const [view, setView] = d2({ first: 0, count: 60 });
  h2(() => {
    const element = box.current;
    if (!element) return void 0;
    let frame = 0;
    const measure = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        const first2 = Math.max(0, Math.floor(element.scrollTop / ROW_PX) - SPARE_ROWS);
        const rowsInView = Math.ceil(element.clientHeight / ROW_PX) + 2 * SPARE_ROWS;
        setView((old) => old.first === first2 && old.count === rowsInView ? old : { first: first2, count: rowsInView });
        onWindow?.(first2, rowsInView);
      });
    };
    measure();
    element.addEventListener("scroll", measure, { passive: true });
    const size = new ResizeObserver(measure);
    size.observe(element);
    return () => {
      cancelAnimationFrame(frame);
      element.removeEventListener("scroll", measure);
      size.disconnect();
    };
  }, [onWindow]);
  const first = Math.min(Math.max(view.first, offset), Math.max(offset, offset + rows.length));
  const last = Math.min(view.first + view.count, offset + rows.length);
  const shown = rows.slice(first - offset, Math.max(first, last) - offset);
  return /* @__PURE__ */ u4("div", { class: "scroll windowed", ref: box, tabIndex: 0, role: "region", "aria-label": label, children: /* @__PURE__ */ u4("table", { "aria-rowcount": total + 1, children: [
    /* @__PURE__ */ u4("thead", { children: /* @__PURE__ */ u4("tr", { "aria-rowindex": 1, children: columns.map((column) => /* @__PURE__ */ u4(Heading, { column, sort, onSort }, column.key ?? column.name)) }) }),
    /* @__PURE__ */ u4("tbody", { children: [
      /* @__PURE__ */ u4(Spacer, { rows: first, columns: columns.length }),
      shown.map((row, place2) => /* @__PURE__ */ u4(
        "tr",
        {
          "aria-rowindex": first + place2 + 2,
          class: `${rowClass?.(row, first + place2) ?? ""} ${current === id(row) ? "current" : ""}`,
          children: columns.map((column) => /* @__PURE__ */ u4("td", { class: `${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`, children: column.of(row) }, column.key ?? column.name))
        },
        id(row)
      )),
      /* @__PURE__ */ u4(Spacer, { rows: Math.max(0, total - first - shown.length), columns: columns.length })
    ] })
  ] }) });
}
function Heading({ column, sort, onSort }) {
  const isUp = sort === column.sort;
  const isDown = sort === `-${column.sort}`;
  const side = `${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`;
  if (!column.sort || !onSort) {
    return /* @__PURE__ */ u4("th", { scope: "col", class: side, children: column.name || /* @__PURE__ */ u4("span", { class: "hidden", children: "select" }) });
  }
  const next = isUp ? `-${column.sort}` : column.sort;
  return /* @__PURE__ */ u4("th", { scope: "col", class: side, "aria-sort": isUp ? "ascending" : isDown ? "descending" : "none", children: /* @__PURE__ */ u4("button", { type: "button", class: "heading", onClick: () => onSort(next), children: [
    column.name,
    /* @__PURE__ */ u4("span", { "aria-hidden": "true", children: isUp ? " ↑" : isDown ? " ↓" : "" })
  ] }) });
}
function Spacer({ rows, columns }) {
  const cell = A2(null);
  _2(() => {
    if (cell.current) cell.current.style.height = `${rows * ROW_PX}px`;
  }, [rows]);
  return rows > 0 ? /* @__PURE__ */ u4("tr", { class: "spacer", "aria-hidden": "true", children: /* @__PURE__ */ u4("td", { ref: cell, colSpan: columns }) }) : null;
}
var toasts = y3([]);
var nextToast = 1;
function notify(text, options2 = {}) {
  const toast = { number: nextToast, text, bad: options2.bad ?? false };
  if (options2.undo) toast.undo = options2.undo;
  nextToast += 1;
  toasts.value = [...toasts.value.slice(-3), toast];
  window.setTimeout(() => dismiss(toast.number), options2.undo || options2.bad ? 12e3 : 5e3);
}
function dismiss(number) {
  toasts.value = toasts.value.filter((one) => one.number !== number);
}
function Toasts() {
  return /* @__PURE__ */ u4("div", { class: "toasts", role: "status", "aria-live": "polite", children: toasts.value.map((toast) => /* @__PURE__ */ u4("div", { class: `toast ${toast.bad ? "toast-bad" : ""}`, children: [
    /* @__PURE__ */ u4("span", { children: toast.text }),
    toast.undo ? /* @__PURE__ */ u4(
      "button",
      {
        type: "button",
        class: "small",
        onClick: () => {
          dismiss(toast.number);
          toast.undo?.();
        },
        children: "Undo"
      }
    ) : null,
    /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": "Dismiss", onClick: () => dismiss(toast.number), children: "×" })
  ] }, toast.number)) });
}
async function attempt(change2, done, undo) {
  try {
    await change2();
    notify(done, undo ? { undo } : {});
    return true;
  } catch (error) {
    notify(error instanceof Error ? error.message : "the server could not be reached", { bad: true });
    return false;
  }
}
var question = y3(null);
function askFor(title, text, yes, fields, danger = false) {
  return new Promise((answer) => {
    question.value = { title, text, yes, danger, fields, answer };
  });
}
async function ask(title, text, yes, options2 = {}) {
  const fields = options2.input ? [{ name: "value", ...options2.input }] : [];
  const values = await askFor(title, text, yes, fields, options2.danger);
  return values && (values["value"] ?? "");
}
function QuestionDialog() {
  const asked = question.value;
  const dialog = A2(null);
  const form = A2(null);
  h2(() => {
    if (asked && dialog.current && !dialog.current.open) dialog.current.showModal();
  }, [asked]);
  if (!asked) return null;
  const close = (values) => {
    question.value = null;
    asked.answer(values);
  };
  return /* @__PURE__ */ u4("dialog", { ref: dialog, "aria-labelledby": "question-title", onCancel: () => close(null), children: /* @__PURE__ */ u4(
    "form",
    {
      ref: form,
      method: "dialog",
      onSubmit: (event) => {
        event.preventDefault();
        const entries = form.current ? [...new FormData(form.current).entries()] : [];
        close(Object.fromEntries(entries.map(([name, value]) => [name, String(value)])));
      },
      children: [
        /* @__PURE__ */ u4("h2", { id: "question-title", children: asked.title }),
        /* @__PURE__ */ u4("p", { children: asked.text }),
        /* @__PURE__ */ u4("div", { class: asked.fields.length > 2 ? "form" : "", children: asked.fields.map((field) => /* @__PURE__ */ u4(AskedField, { field }, field.name)) }),
        /* @__PURE__ */ u4("div", { class: "buttons", children: [
          /* @__PURE__ */ u4("button", { type: "button", onClick: () => close(null), children: "Back" }),
          /* @__PURE__ */ u4("button", { type: "submit", class: asked.danger ? "danger" : "primary", children: asked.yes })
        ] })
      ]
    }
  ) });
}
function AskedField({ field }) {
  if (field.type === "checkbox") {
    return /* @__PURE__ */ u4("label", { class: "inline", children: [
      /* @__PURE__ */ u4("input", { type: "checkbox", name: field.name, value: "yes", defaultChecked: field.value === "yes" }),
      " ",
      field.label
    ] });
  }
  return /* @__PURE__ */ u4("label", { children: [
    field.label,
    field.options ? /* @__PURE__ */ u4("select", { name: field.name, defaultValue: field.value, children: field.options.map((one) => /* @__PURE__ */ u4("option", { value: one, selected: one === field.value, children: one }, one)) }) : /* @__PURE__ */ u4("input", { name: field.name, type: field.type ?? "text", step: field.type === "number" ? "any" : void 0, required: field.needed, defaultValue: field.value ?? "" })
  ] });
}

// src/admin-access.tsx
var TIERS = ["low", "medium", "high", "critical"];
var ROLES = ["viewer", "user", "tenant-admin", "admin"];
function Tenants() {
  const list = useLive((signal) => call("GET /tenants", { signal }), 4e3, []);
  const isAdmin = me.value?.role === "admin";
  const create = async () => {
    const answers = await askFor("New tenant", "Empty limits mean no limit.", "Create", [{ name: "name", label: "Name", needed: true }, ...limitFields(null)]);
    if (answers) await attempt(() => call("POST /tenants", { body: { name: answers["name"] ?? "", ...patchOf(answers) } }), `Tenant ${answers["name"]} is created.`);
    list.refresh();
  };
  const change2 = async (tenant) => {
    const path = { tenant_id: tenant.id };
    const answers = await askFor(`Change ${tenant.name}`, "Empty limits mean no limit. Running jobs continue.", "Change", limitFields(tenant));
    if (answers) {
      const undo = () => void attempt(() => call("PATCH /tenants/{tenant_id}", { path, body: limitsOf(tenant) }), `${tenant.name} is as before.`).then(list.refresh);
      await attempt(() => call("PATCH /tenants/{tenant_id}", { path, body: patchOf(answers) }), `${tenant.name} is changed.`, undo);
    }
    list.refresh();
  };
  const remove = async (tenant) => {
    if (await ask(`Remove ${tenant.name}?`, "Only a tenant without jobs and reservations can be removed.", "Remove", { danger: true }) === null) return;
    await attempt(() => call("DELETE /tenants/{tenant_id}", { path: { tenant_id: tenant.id } }), `${tenant.name} is removed.`);
    list.refresh();
  };
  return /* @__PURE__ */ u4(S, { children: [
    isAdmin ? /* @__PURE__ */ u4("div", { class: "toolbar", children: /* @__PURE__ */ u4("button", { type: "button", class: "primary", onClick: () => void create(), children: "New tenant" }) }) : null,
    /* @__PURE__ */ u4(Problem, { error: list.error }),
    /* @__PURE__ */ u4(
      Table,
      {
        label: "Tenants",
        rows: list.data?.tenants ?? [],
        id: (tenant) => tenant.id,
        columns: [
          { name: "Tenant", of: (tenant) => tenant.name },
          { name: "GPUs", right: true, of: (tenant) => ofLimit(tenant.current_gpus, tenant.max_gpus) },
          { name: "Jobs", right: true, of: (tenant) => ofLimit(tenant.current_jobs, tenant.max_concurrent_jobs) },
          { name: "GPU-hours", right: true, of: (tenant) => ofLimit(tenant.used_gpu_hours, tenant.max_gpu_hours) },
          { name: "Tier", of: (tenant) => tenant.priority_tier },
          { name: "Weight", right: true, of: (tenant) => trim(tenant.fair_share_weight) },
          { name: "Members", of: (tenant) => /* @__PURE__ */ u4("span", { class: "cut", children: [...tenant.linux_groups.map((group) => `group ${group}`), ...tenant.users].join(", ") }) },
          { name: "Admins", of: (tenant) => tenant.admins.join(", ") },
          {
            name: "",
            of: (tenant) => isAdmin ? /* @__PURE__ */ u4("span", { class: "buttons", children: [
              /* @__PURE__ */ u4("button", { type: "button", class: "small", "aria-label": `Change ${tenant.name}`, onClick: () => void change2(tenant), children: "Change" }),
              /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": `Remove ${tenant.name}`, onClick: () => void remove(tenant), children: "×" })
            ] }) : null
          },
          { name: "Warnings", grow: true, of: (tenant) => tenant.warnings.join(" · ") }
        ]
      }
    )
  ] });
}
function ofLimit(used, limit) {
  return limit === null ? trim(used, 1) : `${trim(used, 1)} of ${trim(limit, 1)}`;
}
function limitFields(tenant) {
  const number = (value) => value === null || value === void 0 ? "" : String(value);
  return [
    { name: "max_gpus", label: "GPUs at most", type: "number", value: number(tenant?.max_gpus) },
    { name: "max_concurrent_jobs", label: "Jobs at most", type: "number", value: number(tenant?.max_concurrent_jobs) },
    { name: "max_gpu_hours", label: "GPU-hours budget", type: "number", value: number(tenant?.max_gpu_hours) },
    { name: "fair_share_weight", label: "Fair-share weight", type: "number", value: String(tenant?.fair_share_weight ?? 1), needed: true },
    { name: "priority_tier", label: "Priority tier", options: TIERS, value: tenant?.priority_tier ?? "medium" },
    { name: "users", label: "Users", value: tenant?.users.join(" ") ?? "" },
    { name: "admins", label: "Admins", value: tenant?.admins.join(" ") ?? "" }
  ];
}
function patchOf(answers) {
  const limit = (name) => answers[name] ? Number(answers[name]) : null;
  const words2 = (name) => (answers[name] ?? "").split(/[\s,]+/).filter(Boolean);
  return {
    max_gpus: limit("max_gpus"),
    max_concurrent_jobs: limit("max_concurrent_jobs"),
    max_gpu_hours: limit("max_gpu_hours"),
    fair_share_weight: Number(answers["fair_share_weight"] ?? 1),
    priority_tier: answers["priority_tier"] ?? "medium",
    users: words2("users"),
    admins: words2("admins")
  };
}
function limitsOf(tenant) {
  const { max_gpus, max_concurrent_jobs, max_gpu_hours, fair_share_weight, users, admins } = tenant;
  return { max_gpus, max_concurrent_jobs, max_gpu_hours, fair_share_weight, users, admins, priority_tier: tenant.priority_tier };
}
function Tokens() {
  const list = useLive((signal) => call("GET /tokens", { signal }), 5e3, []);
  const [secret, setSecret] = d2("");
  const create = async () => {
    const answers = await askFor("New token", "For callers on other machines. Its secret is shown once.", "Create", [
      { name: "name", label: "Name" },
      { name: "user", label: "User", value: me.value?.user ?? "" },
      { name: "tenant_id", label: "Tenant", value: me.value?.tenant_id ?? "" },
      { name: "role", label: "Role", options: ROLES, value: "user" },
      { name: "days", label: "Valid for days", type: "number", value: "30", needed: true }
    ]);
    if (!answers) return;
    await attempt(async () => {
      const { name = "", user = "", tenant_id = "", role, days: days2 } = answers;
      const made = await call("POST /tokens", { body: { name, user, tenant_id, role, expires_in_seconds: Number(days2) * 86400 } });
      setSecret(made.token);
    }, "The token is made.");
    list.refresh();
  };
  const revoke = async (id) => {
    if (await ask(`Revoke ${id}?`, "Callers that use it are rejected at once. This cannot be undone.", "Revoke", { danger: true }) === null) return;
    await attempt(() => call("DELETE /tokens/{token_id}", { path: { token_id: id } }), `${id} is revoked.`);
    list.refresh();
  };
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("div", { class: "toolbar", children: /* @__PURE__ */ u4("button", { type: "button", class: "primary", onClick: () => void create(), children: "New token" }) }),
    secret ? /* @__PURE__ */ u4("section", { class: "card", "aria-label": "The new token", children: [
      /* @__PURE__ */ u4("p", { children: "Copy it now; it is not shown again." }),
      /* @__PURE__ */ u4(Code, { text: secret })
    ] }) : null,
    /* @__PURE__ */ u4(Problem, { error: list.error }),
    list.data && !list.data.tokens.length ? /* @__PURE__ */ u4(Empty, { title: "No tokens", children: "Callers on this machine need none; those on other machines send one." }) : /* @__PURE__ */ u4(
      Table,
      {
        label: "Tokens",
        rows: list.data?.tokens ?? [],
        id: (token) => token.id,
        columns: [
          { name: "Token", of: (token) => token.id },
          { name: "Name", of: (token) => token.name },
          { name: "State", of: (token) => /* @__PURE__ */ u4(State, { state: token.state }) },
          { name: "User", of: (token) => /* @__PURE__ */ u4(Who, { name: token.user }) },
          { name: "Tenant", of: (token) => token.tenant_id },
          { name: "Role", of: (token) => token.role },
          { name: "Made by", of: (token) => token.created_by },
          { name: "Last used", of: (token) => time(token.last_used_at) },
          { name: "Valid until", grow: true, of: (token) => time(token.expires_at) },
          {
            name: "",
            of: (token) => token.revoked_at ? null : /* @__PURE__ */ u4("button", { type: "button", class: "small danger", "aria-label": `Revoke ${token.id}`, onClick: () => void revoke(token.id), children: "Revoke" })
          }
        ]
      }
    )
  ] });
}
function Audit() {
  const [user, setUser] = d2("");
  const [action, setAction] = d2("");
  const [outcome, setOutcome] = d2("");
  const [before, setBefore] = d2([null]);
  const last = before.at(-1) ?? null;
  const query2 = { user, action, outcome, before: last, limit: 100 };
  const found = useLive((signal) => call("GET /audit", { query: query2, signal }), last === null ? 5e3 : 0, [user, action, outcome, last]);
  const narrow = (set, value) => {
    set(value);
    setBefore([null]);
  };
  const next = found.data?.next_before ?? null;
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        "User",
        /* @__PURE__ */ u4("input", { value: user, onInput: (event) => narrow(setUser, event.currentTarget.value.trim()) })
      ] }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Action",
        /* @__PURE__ */ u4("input", { value: action, placeholder: "submit, cancel, …", onInput: (event) => narrow(setAction, event.currentTarget.value.trim()) })
      ] }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Outcome",
        /* @__PURE__ */ u4("select", { value: outcome, onChange: (event) => narrow(setOutcome, event.currentTarget.value), children: [
          /* @__PURE__ */ u4("option", { value: "", children: "all" }),
          /* @__PURE__ */ u4("option", { value: "done", children: "done" }),
          /* @__PURE__ */ u4("option", { value: "refused", children: "refused" })
        ] })
      ] })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: found.error }),
    /* @__PURE__ */ u4(
      Table,
      {
        label: "Audit log",
        rows: found.data?.records ?? [],
        id: (record) => String(record.number),
        columns: [
          { name: "When", of: (record) => time(record.at) },
          { name: "User", of: (record) => record.user },
          { name: "Action", of: (record) => record.action },
          { name: "On", of: (record) => record.target },
          { name: "Outcome", of: (record) => /* @__PURE__ */ u4(State, { state: record.outcome === "refused" ? "rejected" : record.outcome }) },
          { name: "From", of: originText },
          { name: "Times", right: true, of: (record) => count(record.count) },
          { name: "Detail", grow: true, of: (record) => /* @__PURE__ */ u4("span", { title: record.detail, children: [record.code, record.detail].filter(Boolean).join(": ") }) }
        ]
      }
    ),
    /* @__PURE__ */ u4("div", { class: "buttons", children: [
      /* @__PURE__ */ u4("button", { type: "button", disabled: before.length < 2, onClick: () => setBefore(before.slice(0, -1)), children: "Newer" }),
      /* @__PURE__ */ u4("button", { type: "button", disabled: next === null, onClick: () => setBefore([...before, next]), children: "Older" })
    ] })
  ] });
}
function originText(record) {
  return [record.origin, record.via].filter(Boolean).join(", ");
}

// src/readings.ts
var POLL_MS = 2e3;
var POLL_BESIDE_STREAM_MS = 15e3;
var RETRY_MS = 5e3;
function gpuId(gpu) {
  return `${gpu.node}:${gpu.index}`;
}
function useGpus() {
  const [changes, setChanges] = d2(null);
  const list = useLive((signal) => call("GET /gpus", { signal }), changes ? POLL_BESIDE_STREAM_MS : POLL_MS, [changes === null]);
  h2(() => {
    let socket;
    let timer = 0;
    let isOver = false;
    const open = () => {
      socket = new WebSocket(address("/gpus/stream"));
      socket.onmessage = (event) => setChanges((old) => merged(old, JSON.parse(String(event.data))));
      socket.onclose = () => {
        if (isOver) return;
        setChanges(null);
        timer = window.setTimeout(open, RETRY_MS);
      };
    };
    open();
    return () => {
      isOver = true;
      clearTimeout(timer);
      socket.close();
    };
  }, []);
  const known = list.data?.gpus ?? null;
  const gpus = T2(() => {
    if (!known || !changes) return known;
    const isListed = new Set(known.map(gpuId));
    const added = [...changes].filter(([id]) => !isListed.has(id)).map(([, fields]) => ({ processes: [], ...fields }));
    return [...known.filter((gpu) => changes.has(gpuId(gpu))).map((gpu) => ({ ...gpu, ...changes.get(gpuId(gpu)) })), ...added];
  }, [known, changes]);
  return { gpus, error: list.error, refresh: list.refresh };
}
function merged(old, message) {
  const found = new Map(message.whole ? [] : old);
  for (const [node, index] of message.gone) found.delete(gpuId({ node, index }));
  for (const gpu of message.gpus) found.set(gpuId(gpu), { ...found.get(gpuId(gpu)), ...gpu });
  return found;
}

// src/admin-nodes.tsx
var GPU_EVENTS = "gpu_unhealthy,gpu_healthy,gpu_quarantined,gpu_hot,gpu_cool,gpu_paused,gpu_resumed,gpu_foreign,gpu_leak,gpu_free";
function Nodes() {
  const list = useLive((signal) => call("GET /nodes", { signal }), 2500, []);
  const [chosen, setChosen] = d2("");
  const nodes = list.data?.nodes;
  const node = nodes?.find((one) => one.id === chosen);
  if (!nodes) return list.error ? /* @__PURE__ */ u4(Problem, { error: list.error }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" });
  if (!nodes.length) return /* @__PURE__ */ u4(Empty, { title: "No nodes yet", children: "A node appears here as soon as its agent has joined." });
  return /* @__PURE__ */ u4("div", { class: node ? "split" : "", children: [
    /* @__PURE__ */ u4("div", { children: [
      /* @__PURE__ */ u4(Problem, { error: list.error }),
      /* @__PURE__ */ u4(
        WindowedTable,
        {
          label: "Nodes",
          total: nodes.length,
          offset: 0,
          rows: nodes,
          id: (one) => one.id,
          sort: "",
          current: chosen,
          columns: [
            {
              name: "Node",
              of: (one) => /* @__PURE__ */ u4("button", { type: "button", class: "link", onClick: () => setChosen(one.id), children: one.id })
            },
            { name: "State", of: (one) => /* @__PURE__ */ u4(State, { state: one.state }) },
            { name: "Free GPUs", right: true, of: (one) => `${one.free_gpus} of ${one.gpus}` },
            { name: "Jobs", right: true, of: (one) => one.running },
            { name: "Rack", of: (one) => one.rack },
            { name: "Version", of: (one) => one.version },
            { name: "Labels", of: (one) => /* @__PURE__ */ u4("span", { class: "cut", children: labelsText(one.labels) }) },
            { name: "Problem", grow: true, of: (one) => /* @__PURE__ */ u4("span", { title: problemText(one), children: problemText(one) }) }
          ]
        }
      )
    ] }),
    node ? /* @__PURE__ */ u4(NodeDetail, { node, close: () => setChosen(""), refresh: list.refresh }) : null
  ] });
}
var OF_AGENT = "tgpu.";
function labelsText(labels) {
  return Object.entries(labels).filter(([name]) => !name.startsWith(OF_AGENT)).map(([name, value]) => `${name}=${value}`).join(" ");
}
function problemText(node) {
  return [node.problem, node.closed?.reason].filter(Boolean).join(" · ");
}
function readLabels(text, old) {
  const labels = Object.fromEntries(
    Object.keys(old).filter((name) => !name.startsWith(OF_AGENT)).map((name) => [name, null])
  );
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const [name, ...value] = word.split("=");
    if (name) labels[name] = value.join("=");
  }
  return labels;
}
function NodeDetail({ node, close, refresh }) {
  const path = { node: node.id };
  const found = useLive((signal) => call("GET /nodes/{node}", { path, signal }), 2500, [node.id]);
  const jobs = found.data?.jobs ?? [];
  const used = useGpus().gpus?.filter((gpu) => gpu.node === node.id && gpu.allocated_share > 0).length ?? 0;
  const isAdmin = me.value?.role === "admin";
  const change2 = async (send2, done, undo) => {
    await attempt(send2, done, undo && (() => void attempt(undo, `${node.id} takes work again.`).then(refresh)));
    refresh();
    found.refresh();
  };
  const open = () => call("POST /nodes/{node}/uncordon", { path });
  const cordon = async () => {
    const reason = await ask(`Cordon ${node.id}?`, "It gets no new jobs. Those that run there continue.", "Cordon", { input: { label: "Reason", value: "" } });
    if (reason !== null) await change2(() => call("POST /nodes/{node}/cordon", { path, body: { reason } }), `${node.id} is cordoned.`, open);
  };
  const drain = async () => {
    const answers = await askFor(
      `Drain ${node.id}?`,
      "It gets no new jobs. Without a deadline its jobs run to their end; at the deadline they are stopped and go back into the queue.",
      "Drain",
      [
        { name: "reason", label: "Reason" },
        { name: "minutes", label: "Deadline in minutes", type: "number" },
        { name: "requeue", label: "Requeue its jobs now", type: "checkbox" }
      ],
      true
    );
    if (!answers) return;
    const minutes = answers["minutes"] ?? "";
    const body = { reason: answers["reason"] ?? "", requeue: answers["requeue"] === "yes", deadline_seconds: minutes ? Math.round(Number(minutes) * 60) : null };
    await change2(() => call("POST /nodes/{node}/drain", { path, body }), `${node.id} is draining.`, open);
  };
  const label = async () => {
    const text = await ask(`Labels of ${node.id}`, "NAME=VALUE, with spaces between.", "Set", { input: { label: "Labels", value: labelsText(node.labels) } });
    if (text !== null) await change2(() => call("PATCH /nodes/{node}", { path, body: { labels: readLabels(text, node.labels) } }), `${node.id} has these labels now.`);
  };
  const confirmDead = async () => {
    const text = "Only if you know that it is off or cannot reach its GPUs: its jobs start on other nodes, and a job that still runs there would run twice.";
    if (await ask(`Declare ${node.id} dead?`, text, "It is dead", { danger: true }) !== null) await change2(() => call("POST /nodes/{node}/confirm-dead", { path }), `${node.id} is declared dead.`);
  };
  const remove = async () => {
    if (await ask(`Remove ${node.id}?`, "It is forgotten until its agent joins again.", "Remove", { danger: true }) === null) return;
    await change2(() => call("DELETE /nodes/{node}", { path }), `${node.id} is removed.`);
    close();
  };
  const isClosed = node.closed !== null;
  const isSilent = node.silent_since !== null;
  return /* @__PURE__ */ u4("aside", { class: "card detail", "aria-label": `Node ${node.id}`, children: [
    /* @__PURE__ */ u4("div", { class: "tile-head", children: [
      /* @__PURE__ */ u4("h2", { children: node.id }),
      /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": "Close", onClick: close, children: "×" })
    ] }),
    /* @__PURE__ */ u4(State, { state: node.state }),
    " ",
    node.problem ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: node.problem }) : null,
    node.closed?.drains ? /* @__PURE__ */ u4("section", { "aria-label": "Drain", children: [
      /* @__PURE__ */ u4(Meter, { label: "left", value: used / Math.max(1, node.gpus), text: plural(node.running, "job"), tone: "warn" }),
      /* @__PURE__ */ u4("p", { class: "muted", children: [
        node.running ? `${plural(used, "GPU")} still used` : "Nothing runs here any more: the node is drained.",
        node.running && node.closed.requeue_at ? `; jobs are requeued ${until(node.closed.requeue_at)}` : ""
      ] })
    ] }) : null,
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["Closed", node.closed ? `by ${node.closed.by}, ${since(node.closed.since)} ago${node.closed.reason ? `: ${node.closed.reason}` : ""}` : ""],
          ["Silent since", node.silent_since ? time(node.silent_since) : ""],
          ["Address", node.address],
          ["GPUs", `${used} of ${node.gpus} used${node.gpu_models.length ? `, ${node.gpu_models.join(", ")}` : ""}`],
          ["CPU cores", `${count(node.free_cpu_cores)} of ${count(node.cpu_cores)} free`],
          ["Memory", `${memory(node.free_memory_mb)} of ${memory(node.memory_mb)} free`],
          ["Labels", labelsText(node.labels)],
          ["Rack", node.rack],
          ["Jobs", jobs.slice(0, 20).map((job) => /* @__PURE__ */ u4("span", { children: [
            /* @__PURE__ */ u4(JobLink, { id: job }),
            " "
          ] }, job))]
        ]
      }
    ),
    isAdmin ? /* @__PURE__ */ u4("div", { class: "buttons", children: [
      isClosed ? /* @__PURE__ */ u4("button", { type: "button", onClick: () => void change2(open, `${node.id} takes work again.`), children: "Uncordon" }) : /* @__PURE__ */ u4("button", { type: "button", onClick: () => void cordon(), children: "Cordon" }),
      node.closed?.drains ? null : /* @__PURE__ */ u4("button", { type: "button", class: "danger", onClick: () => void drain(), children: "Drain" }),
      /* @__PURE__ */ u4("button", { type: "button", onClick: () => void label(), children: "Labels" }),
      isSilent ? /* @__PURE__ */ u4(S, { children: [
        /* @__PURE__ */ u4("button", { type: "button", class: "danger", onClick: () => void confirmDead(), children: "Confirm dead" }),
        /* @__PURE__ */ u4("button", { type: "button", class: "danger", onClick: () => void remove(), children: "Remove" })
      ] }) : null
    ] }) : null
  ] });
}
function Gpus({ about }) {
  const { gpus, error, refresh } = useGpus();
  const [onlyClosed, setOnlyClosed] = d2(false);
  const shown = T2(() => gpus?.filter((gpu) => !onlyClosed || gpu.why) ?? [], [gpus, onlyClosed]);
  if (!gpus) return error ? /* @__PURE__ */ u4(Problem, { error }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" });
  const change2 = async (gpu, verb) => {
    const send2 = (what) => call(`POST /gpus/{node}/{index}/${what}`, { path: { node: gpu.node, index: gpu.index } });
    const back = verb === "pause" ? "resume" : "pause";
    await attempt(() => send2(verb), `${gpuId(gpu)} is ${verb}d.`, () => void attempt(() => send2(back), `${gpuId(gpu)} is ${back}d.`).then(refresh));
    refresh();
  };
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4(Problem, { error }),
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        /* @__PURE__ */ u4("input", { type: "checkbox", checked: onlyClosed, onChange: (event) => setOnlyClosed(event.currentTarget.checked) }),
        " Only those that take no work"
      ] }),
      /* @__PURE__ */ u4("span", { class: "muted", children: plural(shown.length, "GPU") })
    ] }),
    /* @__PURE__ */ u4(
      WindowedTable,
      {
        label: "GPUs",
        total: shown.length,
        offset: 0,
        rows: shown,
        id: gpuId,
        sort: "",
        current: about,
        columns: [
          { name: "GPU", of: (gpu) => /* @__PURE__ */ u4("a", { href: `#/admin/gpus/${encodeURIComponent(gpuId(gpu))}`, children: gpuId(gpu) }) },
          { name: "Model", of: (gpu) => gpu.model },
          { name: "State", of: (gpu) => /* @__PURE__ */ u4(State, { state: gpu.state }) },
          { name: "Jobs", of: (gpu) => gpu.jobs.slice(0, 4).map((job) => /* @__PURE__ */ u4(JobLink, { id: job }, job)) },
          {
            name: "",
            key: "change",
            of: (gpu) => me.value?.role !== "admin" ? null : gpu.paused || gpu.state === "quarantined" ? /* @__PURE__ */ u4("button", { type: "button", class: "small", "aria-label": `Resume ${gpuId(gpu)}`, onClick: () => void change2(gpu, "resume"), children: "Resume" }) : /* @__PURE__ */ u4("button", { type: "button", class: "small", "aria-label": `Pause ${gpuId(gpu)}`, onClick: () => void change2(gpu, "pause"), children: "Pause" })
          },
          { name: "Why it takes no work", grow: true, of: (gpu) => /* @__PURE__ */ u4("span", { title: gpu.why, children: gpu.why }) }
        ]
      }
    ),
    /* @__PURE__ */ u4(GpuHistory, { about })
  ] });
}
function GpuHistory({ about }) {
  const cut = about.lastIndexOf(":");
  const query2 = { newest: true, kind: GPU_EVENTS, limit: 200, ...cut > 0 ? { node: about.slice(0, cut), gpu: about.slice(cut + 1) } : {} };
  const found = useLive((signal) => call("GET /events", { query: query2, signal }), 1e4, [about]);
  const events = found.data?.events ?? [];
  return /* @__PURE__ */ u4("section", { "aria-label": "History of GPUs", children: [
    /* @__PURE__ */ u4("h2", { children: about ? `What happened to ${about}` : "What happened to GPUs" }),
    /* @__PURE__ */ u4(Problem, { error: found.error }),
    events.length ? /* @__PURE__ */ u4(
      Table,
      {
        label: "History",
        rows: events,
        id: (event) => String(event.sequence),
        columns: [
          { name: "When", of: (event) => time(event.at) },
          { name: "GPU", of: (event) => `${event.data["node"] ?? ""}:${event.data["gpu"] ?? ""}` },
          { name: "What", of: (event) => event.kind.replace("gpu_", "") },
          { name: "XID", right: true, of: (event) => event.data["xid"] || "–" },
          { name: "Detail", grow: true, of: (event) => /* @__PURE__ */ u4("span", { title: eventText(event), children: eventText(event) }) }
        ]
      }
    ) : /* @__PURE__ */ u4("p", { class: "muted", children: found.data ? "Nothing in the events that are kept." : "" })
  ] });
}
function eventText(event) {
  return Object.entries(event.data).filter(([name, value]) => !["node", "gpu", "xid"].includes(name) && value !== "").map(([name, value]) => name === "why" ? String(value) : `${name.replaceAll("_", " ")} ${value}`).concat(event.user ? [`by ${event.user}`] : []).join(", ");
}

// src/admin-operations.tsx
async function health(signal) {
  const response = await fetch("/api/v1/health", { signal });
  if (response.status !== 200 && response.status !== 503) throw await asError(response);
  return await response.json();
}
function Health() {
  const found = useLive(health, 3e3, []);
  const data = found.data;
  if (!data) return found.error ? /* @__PURE__ */ u4(Problem, { error: found.error }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" });
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("p", { children: [
      /* @__PURE__ */ u4(State, { state: data.status }),
      " ",
      /* @__PURE__ */ u4("span", { class: "muted", children: `version ${data.version}, up for ${duration(data.uptime_seconds)}` })
    ] }),
    data.reasons.length ? /* @__PURE__ */ u4("section", { "aria-label": "Problems", children: data.reasons.map((reason) => /* @__PURE__ */ u4("article", { class: "card", children: [
      /* @__PURE__ */ u4("h2", { children: [
        reason.check,
        " ",
        /* @__PURE__ */ u4(State, { state: reason.status })
      ] }),
      /* @__PURE__ */ u4("p", { children: reason.detail }),
      reason.remedy ? /* @__PURE__ */ u4("p", { children: [
        /* @__PURE__ */ u4("strong", { children: "What to do:" }),
        " ",
        reason.remedy
      ] }) : null
    ] }, `${reason.check} ${reason.detail}`)) }) : /* @__PURE__ */ u4("p", { class: "note note-good", children: "Everything that the server checks is in order." }),
    /* @__PURE__ */ u4("h2", { children: "Checks" }),
    /* @__PURE__ */ u4(
      Table,
      {
        label: "Checks",
        rows: Object.entries(data.checks),
        id: ([name]) => name,
        columns: [
          { name: "Check", of: ([name]) => name.replaceAll("_", " ") },
          { name: "Result", grow: true, of: ([, result]) => /* @__PURE__ */ u4(State, { state: result }) }
        ]
      }
    ),
    data.leadership ? /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Leadership", children: [
      /* @__PURE__ */ u4("h2", { children: "Leadership" }),
      /* @__PURE__ */ u4(
        Facts,
        {
          of: [
            ["This server", `${data.leadership.name}, ${data.leadership.role}`],
            ["Leader", data.leadership.leader],
            ["Term", data.leadership.term],
            ["Standbys", data.leadership.standbys.map((one) => /* @__PURE__ */ u4("span", { children: `${one.name} (${one.address}), seen ${duration(one.seen_seconds_ago)} ago ` }, one.name))],
            ["Trouble", data.leadership.trouble]
          ]
        }
      )
    ] }) : null
  ] });
}
function Reservations() {
  const [all, setAll] = d2(false);
  const list = useLive((signal) => call("GET /reservations", { query: { all }, signal }), 4e3, [all]);
  const isAdmin = me.value?.role === "admin";
  const create = async () => {
    const answers = await askFor("Reserve GPUs", "They are kept for this tenant from the start on; jobs that would still run then are not started on them.", "Reserve", [
      { name: "gpus", label: "GPUs", type: "number", value: "1", needed: true },
      { name: "tenant_id", label: "Tenant", value: me.value?.tenant_id ?? "", needed: true },
      { name: "user", label: "Only for user" },
      { name: "name", label: "Name" },
      { name: "start", label: "Start (empty: now)", type: "datetime-local" },
      { name: "hours", label: "Hours", type: "number", value: "2", needed: true },
      { name: "node", label: "On node" },
      { name: "gpu_model", label: "GPU model" },
      { name: "preempt", label: "Stop jobs that are in the way", type: "checkbox" }
    ]);
    if (!answers) return;
    const start = answers["start"] ? { start: new Date(answers["start"]).toISOString() } : {};
    const words2 = Object.fromEntries(["user", "name", "node", "gpu_model"].map((name) => [name, answers[name] ?? ""]).filter(([, value]) => value));
    const body = {
      gpus: Number(answers["gpus"]),
      tenant_id: answers["tenant_id"] ?? "",
      duration_minutes: Math.round(Number(answers["hours"]) * 60),
      preempt: answers["preempt"] === "yes",
      ...start,
      ...words2
    };
    await attempt(() => call("POST /reservations", { body }), `${plural(body.gpus, "GPU")} reserved.`);
    list.refresh();
  };
  const release = async (one) => {
    if (await ask(`Release ${one.name || one.id}?`, "Its GPUs are for everybody again.", "Release", { danger: true }) === null) return;
    await attempt(() => call("DELETE /reservations/{reservation_id}", { path: { reservation_id: one.id } }), `${one.name || one.id} is released.`);
    list.refresh();
  };
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      isAdmin ? /* @__PURE__ */ u4("button", { type: "button", class: "primary", onClick: () => void create(), children: "Reserve GPUs" }) : null,
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        /* @__PURE__ */ u4("input", { type: "checkbox", checked: all, onChange: (event) => setAll(event.currentTarget.checked) }),
        " Also ended ones"
      ] })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: list.error }),
    list.data && !list.data.reservations.length ? /* @__PURE__ */ u4(Empty, { title: "No reservations" }) : /* @__PURE__ */ u4(
      Table,
      {
        label: "Reservations",
        rows: list.data?.reservations ?? [],
        id: (one) => one.id,
        columns: [
          { name: "Reservation", of: (one) => one.name || one.id },
          { name: "State", of: (one) => /* @__PURE__ */ u4(State, { state: one.state }) },
          { name: "For", of: (one) => one.user ? `${one.user} of ${one.tenant_id}` : one.tenant_id },
          { name: "GPUs", right: true, of: (one) => one.gpus },
          { name: "Start", of: (one) => time(one.start) },
          { name: "End", of: (one) => time(one.end) },
          { name: "Made by", of: (one) => one.made_by },
          { name: "Where", grow: true, of: (one) => /* @__PURE__ */ u4("span", { class: "mono", children: one.places.map((place2) => `${place2.node}[${place2.gpu_ids.join(",")}]`).join(" ") }) },
          {
            name: "",
            of: (one) => isAdmin && !one.over_at ? /* @__PURE__ */ u4("button", { type: "button", class: "small danger", "aria-label": `Release ${one.name || one.id}`, onClick: () => void release(one), children: "Release" }) : null
          }
        ]
      }
    )
  ] });
}
function Notifications() {
  const list = useLive((signal) => call("GET /notifications", { signal }), 5e3, []);
  const test = async (target) => {
    await attempt(async () => {
      const found = await call("POST /notifications/{target}/test", { path: { target: target.name } });
      if (!found.delivered) throw new Error(`${target.name}: ${found.error}`);
    }, `A test has reached ${target.name}.`);
    list.refresh();
  };
  const targets = list.data?.targets;
  if (targets && !targets.length) return /* @__PURE__ */ u4(Empty, { title: "No notification targets", children: "They are set up in the settings (notifications.targets)." });
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4(Problem, { error: list.error }),
    /* @__PURE__ */ u4(
      Table,
      {
        label: "Notification targets",
        rows: targets ?? [],
        id: (one) => one.name,
        columns: [
          { name: "Target", of: (one) => one.name },
          { name: "Kind", of: (one) => one.kind },
          { name: "Events", of: (one) => one.events.join(", ") },
          { name: "Delivered", right: true, of: (one) => one.delivered === null ? "–" : count(one.delivered) },
          { name: "Pending", right: true, of: (one) => one.waiting ?? "–" },
          { name: "Given up", right: true, of: (one) => one.given_up ?? "–" },
          { name: "Next try", of: (one) => time(one.next_try_at) },
          {
            name: "",
            of: (one) => /* @__PURE__ */ u4("button", { type: "button", class: "small", "aria-label": `Test ${one.name}`, onClick: () => void test(one), children: "Test" })
          },
          { name: "Last error", grow: true, of: (one) => /* @__PURE__ */ u4("span", { title: one.last_error ?? "", children: one.last_error }) }
        ]
      }
    )
  ] });
}
function Settings() {
  const found = useLive((signal) => call("GET /settings", { signal }), 0, []);
  const [words2, setWords] = d2("");
  const [onlyChanged, setOnlyChanged] = d2(false);
  const shown = T2(
    () => (found.data?.settings ?? []).filter(
      (one) => (one.changed || !onlyChanged) && words2.toLowerCase().split(/\s+/).every((word) => `${one.key} ${one.about} ${one.value}`.toLowerCase().includes(word))
    ),
    [found.data, words2, onlyChanged]
  );
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("p", { children: [
      "The settings with which this server runs. They are read from its file, variables and options at its start: ",
      /* @__PURE__ */ u4("code", { children: "tgpu config check" }),
      " checks a file before."
    ] }),
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Search",
        /* @__PURE__ */ u4("input", { type: "search", value: words2, onInput: (event) => setWords(event.currentTarget.value) })
      ] }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        /* @__PURE__ */ u4("input", { type: "checkbox", checked: onlyChanged, onChange: (event) => setOnlyChanged(event.currentTarget.checked) }),
        " Only changed ones"
      ] }),
      /* @__PURE__ */ u4("span", { class: "muted", children: plural(shown.length, "setting") })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: found.error }),
    /* @__PURE__ */ u4(
      Table,
      {
        label: "Settings",
        rows: shown,
        id: (one) => one.key,
        columns: [
          { name: "Setting", of: (one) => /* @__PURE__ */ u4("code", { children: one.key }) },
          { name: "Value", of: (one) => /* @__PURE__ */ u4("span", { class: `cut mono ${one.changed ? "strong" : ""}`, title: one.value, children: one.value }) },
          { name: "Default", of: (one) => /* @__PURE__ */ u4("span", { class: "cut mono muted", children: one.changed ? one.default : "the same" }) },
          { name: "Meaning", grow: true, of: (one) => /* @__PURE__ */ u4("span", { title: one.about, children: one.about }) }
        ]
      }
    )
  ] });
}

// src/admin.tsx
var PARTS = [
  { path: "health", name: "Health", show: () => /* @__PURE__ */ u4(Health, {}) },
  { path: "nodes", name: "Nodes", show: () => /* @__PURE__ */ u4(Nodes, {}) },
  { path: "gpus", name: "GPUs", show: (about) => /* @__PURE__ */ u4(Gpus, { about }) },
  { path: "reservations", name: "Reservations", show: () => /* @__PURE__ */ u4(Reservations, {}) },
  { path: "tenants", name: "Tenants", show: () => /* @__PURE__ */ u4(Tenants, {}) },
  { path: "tokens", name: "Tokens", show: () => /* @__PURE__ */ u4(Tokens, {}) },
  { path: "notifications", name: "Notifications", show: () => /* @__PURE__ */ u4(Notifications, {}) },
  { path: "audit", name: "Audit log", show: () => /* @__PURE__ */ u4(Audit, {}), adminOnly: true },
  { path: "settings", name: "Settings", show: () => /* @__PURE__ */ u4(Settings, {}), adminOnly: true }
];
function Admin({ tab, about }) {
  const parts = PARTS.filter((part) => !part.adminOnly || me.value?.role === "admin");
  const shown = parts.find((part) => part.path === (tab || "health"));
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h1", { children: "Admin" }),
    /* @__PURE__ */ u4("nav", { class: "parts", "aria-label": "Parts of this page", children: parts.map((part) => /* @__PURE__ */ u4("a", { href: `#/admin/${part.path}`, "aria-current": part === shown ? "page" : void 0, children: part.name }, part.path)) }),
    shown ? shown.show(about) : me.value ? /* @__PURE__ */ u4(Empty, { title: "This part is for admins" }) : null
  ] });
}

// src/cluster.tsx
var FEW_GPUS = 16;
var COLOURS = ["user", "utilisation", "memory", "temperature"];
var BAD_STATES = /* @__PURE__ */ new Set(["unhealthy", "quarantined", "hot", "leaking"]);
function Cluster() {
  const { gpus, error, refresh } = useGpus();
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 5e3, []);
  const status = useLive((signal) => call("GET /cluster/status", { signal }), 3e3, []);
  const [chosen, setChosen] = d2("");
  const [colour, setColour] = d2("user");
  const [words2, setWords] = d2("");
  const shown = T2(() => gpus?.filter((gpu2) => matches(gpu2, words2)) ?? [], [gpus, words2]);
  if (!gpus || !nodes.data) return error ? /* @__PURE__ */ u4(Problem, { error }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" });
  const gpu = gpus.find((one) => gpuId(one) === chosen);
  const few = gpus.length <= FEW_GPUS;
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h1", { children: "Cluster" }),
    /* @__PURE__ */ u4(Problem, { error }),
    /* @__PURE__ */ u4(Summary, { gpus, running: status.data?.running_jobs ?? 0, waiting: status.data?.pending_jobs ?? 0 }),
    gpus.length === 0 ? /* @__PURE__ */ u4(Empty, { title: "No GPUs yet", children: /* @__PURE__ */ u4("p", { children: [
      "A node appears here as soon as its agent has joined: ",
      /* @__PURE__ */ u4("code", { children: "tgpu agent" }),
      ". To try without GPUs: ",
      /* @__PURE__ */ u4("code", { children: "tgpu up --simulate 8xA100-80GB" }),
      "."
    ] }) }) : /* @__PURE__ */ u4(S, { children: [
      /* @__PURE__ */ u4("div", { class: "toolbar", children: [
        /* @__PURE__ */ u4("label", { class: "inline", children: [
          "Search",
          /* @__PURE__ */ u4("input", { type: "search", value: words2, placeholder: "node, user, job, model, state", onInput: (event) => setWords(event.currentTarget.value) })
        ] }),
        few ? null : /* @__PURE__ */ u4("label", { class: "inline", children: [
          "Colour",
          /* @__PURE__ */ u4("select", { value: colour, onChange: (event) => setColour(event.currentTarget.value), children: COLOURS.map((one) => /* @__PURE__ */ u4("option", { value: one, children: one }, one)) })
        ] }),
        /* @__PURE__ */ u4("span", { class: "muted", children: words2 ? `${count(shown.length)} of ${plural(gpus.length, "GPU")}` : null })
      ] }),
      /* @__PURE__ */ u4("div", { class: gpu ? "split" : "", children: [
        /* @__PURE__ */ u4("div", { children: [
          few ? /* @__PURE__ */ u4(Tiles, { gpus: shown, nodes: nodes.data.nodes, chosen, choose: setChosen }) : /* @__PURE__ */ u4(GpuMap, { gpus: shown, nodes: nodes.data.nodes, colour, chosen, choose: setChosen }),
          /* @__PURE__ */ u4("h2", { children: "GPUs" }),
          /* @__PURE__ */ u4(GpuTable, { gpus: shown, chosen, choose: setChosen })
        ] }),
        gpu ? /* @__PURE__ */ u4(GpuDetail, { gpu, close: () => setChosen(""), refresh }) : null
      ] })
    ] })
  ] });
}
function matches(gpu, words2) {
  const text = `${gpuId(gpu)} ${gpu.model} ${gpu.state} ${gpu.users.join(" ")} ${gpu.jobs.join(" ")}`.toLowerCase();
  return words2.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
function Summary({ gpus, running, waiting }) {
  const used = gpus.reduce((sum, gpu) => sum + gpu.allocated_share, 0);
  const free = gpus.filter((gpu) => gpu.state === "free" && !gpu.why).length;
  const bad = gpus.filter((gpu) => gpu.why).length;
  const busy = gpus.filter((gpu) => gpu.utilisation_percent !== null);
  const load = busy.reduce((sum, gpu) => sum + (gpu.utilisation_percent ?? 0), 0) / Math.max(1, busy.length);
  const power = gpus.reduce((sum, gpu) => sum + (gpu.power_watts ?? 0), 0);
  const figures = [
    [`${trim(used, 1)}`, `of ${count(gpus.length)} GPUs allocated`],
    [count(free), "free"],
    [count(running), "jobs running", "#/jobs"],
    [count(waiting), "jobs waiting", "#/jobs"]
  ];
  if (busy.length) figures.push([`${Math.round(load)} %`, "mean utilisation"]);
  if (power) figures.push([power < 1e4 ? `${Math.round(power)} W` : `${trim(power / 1e3, 1)} kW`, "power"]);
  if (bad) figures.push([count(bad), bad === 1 ? "GPU takes no work" : "GPUs take no work"]);
  return /* @__PURE__ */ u4(Figures, { of: figures });
}
function degrees(gpu) {
  return gpu.temperature_c ? `${gpu.temperature_c} °C` : "–";
}
function watts(gpu) {
  return gpu.power_watts ? `${Math.round(gpu.power_watts)} W` : "–";
}
function usedMb(gpu) {
  return gpu.memory_used_mb || gpu.utilisation_percent !== null ? gpu.memory_used_mb : null;
}
function usedMemory(gpu) {
  return `${memory(usedMb(gpu))} of ${memory(gpu.memory_mb)}`;
}
function usedShare(gpu) {
  const mb = usedMb(gpu);
  return mb === null ? null : mb / Math.max(1, gpu.memory_mb);
}
function Tiles({ gpus, nodes, chosen, choose }) {
  return /* @__PURE__ */ u4(S, { children: nodes.filter((node) => gpus.some((gpu) => gpu.node === node.id)).map((node) => /* @__PURE__ */ u4("section", { "aria-label": `node ${node.id}`, children: [
    /* @__PURE__ */ u4("h2", { class: "node-title", children: [
      node.id,
      " ",
      /* @__PURE__ */ u4(State, { state: node.state }),
      /* @__PURE__ */ u4("span", { class: "muted", children: [node.rack && `rack ${node.rack}`, ...node.gpu_models, node.problem].filter(Boolean).join(" · ") })
    ] }),
    /* @__PURE__ */ u4("div", { class: "tiles", children: gpus.filter((gpu) => gpu.node === node.id).map((gpu) => /* @__PURE__ */ u4(Tile, { gpu, chosen: chosen === gpuId(gpu), choose }, gpu.index)) })
  ] }, node.id)) });
}
function Tile({ gpu, chosen, choose }) {
  return /* @__PURE__ */ u4("article", { class: `tile tile-${gpu.state} ${chosen ? "chosen" : ""}`, children: [
    /* @__PURE__ */ u4("div", { class: "tile-head", children: [
      /* @__PURE__ */ u4("button", { type: "button", class: "link", onClick: () => choose(gpuId(gpu)), "aria-label": `GPU ${gpu.index} of ${gpu.node}: details`, children: [
        "GPU ",
        gpu.index
      ] }),
      /* @__PURE__ */ u4(State, { state: gpu.state })
    ] }),
    /* @__PURE__ */ u4("p", { class: "tile-who", children: [
      gpu.users.length ? gpu.users.map((user) => /* @__PURE__ */ u4(Who, { name: user }, user)) : /* @__PURE__ */ u4("span", { class: "muted", children: gpu.why || "free" }),
      gpu.jobs.slice(0, 3).map((job) => /* @__PURE__ */ u4(JobLink, { id: job }, job)),
      gpu.jobs.length > 3 ? /* @__PURE__ */ u4("span", { class: "muted", children: [
        "and ",
        gpu.jobs.length - 3,
        " more"
      ] }) : null
    ] }),
    /* @__PURE__ */ u4(Meter, { label: "share", value: gpu.allocated_share, text: `${Math.round(gpu.allocated_share * 100)} %` }),
    /* @__PURE__ */ u4(
      Meter,
      {
        label: "memory",
        value: usedShare(gpu),
        text: usedMemory(gpu)
      }
    ),
    gpu.utilisation_percent === null ? null : /* @__PURE__ */ u4(Meter, { label: "busy", value: gpu.utilisation_percent / 100, text: `${gpu.utilisation_percent} %`, tone: "good" }),
    gpu.temperature_c || gpu.power_watts ? /* @__PURE__ */ u4("p", { class: "tile-foot muted", children: [degrees(gpu), watts(gpu)].join(" · ") }) : null
  ] });
}
function layOut(gpus, nodes, width) {
  const size = gpus.length > 400 ? 13 : 20;
  const gap = size > 16 ? 4 : 3;
  const labelWidth = size > 16 ? 110 : 76;
  const byNode = /* @__PURE__ */ new Map();
  for (const gpu of gpus) byNode.set(gpu.node, [...byNode.get(gpu.node) ?? [], gpu]);
  const most = Math.max(1, ...[...byNode.values()].map((list) => list.length));
  const blockWidth = labelWidth + most * (size + gap) + 18;
  const perRow = Math.max(1, Math.floor(width / blockWidth));
  const rowHeight = size + gap + 5;
  const layout = { cells: [], labels: [], lines: [], size, height: 0 };
  const racks = [...new Set(nodes.map((node) => node.rack))].sort();
  let y5 = 4;
  for (const rack of racks) {
    const inRack = nodes.filter((node) => node.rack === rack && byNode.has(node.id));
    if (!inRack.length) continue;
    if (racks.length > 1 || rack) {
      layout.labels.push({ x: 0, y: y5 + 12, text: rack ? `rack ${rack}` : "no rack", strong: true });
      y5 += 20;
    }
    inRack.forEach((node, place2) => {
      const left = place2 % perRow * blockWidth;
      const top = y5 + Math.floor(place2 / perRow) * rowHeight;
      const short = node.id.length > labelWidth / 7.5 ? `${node.id.slice(0, Math.floor(labelWidth / 7.5) - 1)}…` : node.id;
      layout.labels.push({ x: left, y: top + size - 3, text: node.state === "online" ? short : `! ${short}`, strong: false });
      const list = byNode.get(node.id) ?? [];
      list.forEach((gpu, index) => layout.cells.push({ x: left + labelWidth + index * (size + gap), y: top, gpu }));
      for (const island of node.islands) {
        const places = list.flatMap((gpu, index) => island.includes(gpu.index) ? [index] : []);
        const first = places[0];
        const last = places.at(-1);
        if (first === void 0 || last === void 0 || places.length < 2) continue;
        layout.lines.push({ x: left + labelWidth + first * (size + gap), y: top + size + 2, width: (last - first) * (size + gap) + size });
      }
    });
    y5 += Math.ceil(inRack.length / perRow) * rowHeight + 6;
  }
  layout.height = y5;
  return layout;
}
function GpuMap({ gpus, nodes, colour, chosen, choose }) {
  const canvas = A2(null);
  const [width, setWidth] = d2(0);
  const [hovered, setHovered] = d2("");
  const shape = gpus.map(gpuId).join(" ");
  const layout = T2(() => layOut(gpus, nodes, width), [shape, nodes, width]);
  h2(() => {
    const element = canvas.current?.parentElement;
    if (!element) return void 0;
    const size = new ResizeObserver(() => setWidth(element.clientWidth));
    size.observe(element);
    return () => size.disconnect();
  }, []);
  const byId = T2(() => new Map(gpus.map((gpu2) => [gpuId(gpu2), gpu2])), [gpus]);
  h2(() => {
    if (canvas.current && width) draw(canvas.current, layout, byId, colour, chosen, width);
  }, [layout, byId, colour, chosen, width]);
  const at = (event) => {
    const cell = layout.cells.find((one) => event.offsetX >= one.x && event.offsetX <= one.x + layout.size && event.offsetY >= one.y && event.offsetY <= one.y + layout.size);
    return cell ? gpuId(cell.gpu) : "";
  };
  const gpu = byId.get(hovered);
  return /* @__PURE__ */ u4("div", { class: "map card", children: [
    /* @__PURE__ */ u4(
      "canvas",
      {
        ref: canvas,
        role: "img",
        "aria-label": `Map of ${plural(gpus.length, "GPU")} on ${plural(nodes.length, "node")}; the table below has the same data`,
        onMouseMove: (event) => setHovered(at(event)),
        onMouseLeave: () => setHovered(""),
        onClick: (event) => choose(at(event))
      }
    ),
    /* @__PURE__ */ u4("p", { class: "map-line", "aria-hidden": "true", children: gpu ? `${gpuId(gpu)} · ${gpu.model} · ${gpu.state}${gpu.users.length ? ` · ${gpu.users.join(", ")} · ${gpu.jobs.join(", ")}` : ""}${gpu.utilisation_percent === null ? "" : ` · ${gpu.utilisation_percent} % busy`} · ${usedMemory(gpu)}${gpu.why ? ` · ${gpu.why}` : ""}` : "Point at a GPU to read it; click to open it. An underline joins GPUs of one NVLink island, × marks GPUs that take no work." })
  ] });
}
function draw(canvas, layout, byId, colour, chosen, width) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(layout.height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${layout.height}px`;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(name).trim();
  const dark = css("--dark") === "1";
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, layout.height);
  pen.textBaseline = "alphabetic";
  for (const label of layout.labels) {
    pen.fillStyle = label.strong ? css("--text") : css("--muted");
    pen.font = `${label.strong ? "600 " : ""}${layout.size > 16 ? 12 : 11}px ${css("--font")}`;
    pen.fillText(label.text, label.x, label.y);
  }
  pen.fillStyle = css("--muted");
  for (const line2 of layout.lines) pen.fillRect(line2.x, line2.y, line2.width, 1);
  const size = layout.size;
  for (const cell of layout.cells) {
    const gpu = byId.get(gpuId(cell.gpu)) ?? cell.gpu;
    const { x: x3, y: y5 } = cell;
    pen.fillStyle = css("--cell");
    pen.fillRect(x3, y5, size, size);
    const [part, paint] = fill(gpu, colour, dark);
    if (part > 0) {
      const height = Math.max(2, Math.round(size * Math.min(1, part)));
      pen.fillStyle = paint;
      pen.fillRect(x3, y5 + size - height, size, height);
    }
    if (gpu.why || BAD_STATES.has(gpu.state)) {
      pen.strokeStyle = css(BAD_STATES.has(gpu.state) ? "--bad" : "--muted");
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x3 + 3, y5 + 3);
      pen.lineTo(x3 + size - 3, y5 + size - 3);
      pen.moveTo(x3 + size - 3, y5 + 3);
      pen.lineTo(x3 + 3, y5 + size - 3);
      pen.stroke();
    }
    if (gpuId(gpu) === chosen) {
      pen.strokeStyle = css("--text");
      pen.lineWidth = 2;
      pen.strokeRect(x3 - 1, y5 - 1, size + 2, size + 2);
    }
  }
}
function fill(gpu, colour, dark) {
  if (colour === "user") {
    const user = gpu.users[0];
    return user ? [gpu.allocated_share, `hsl(${hue(user)} 62% ${dark ? 58 : 48}%)`] : [gpu.state === "foreign" ? 1 : 0, "#c77700"];
  }
  const part = colour === "utilisation" ? (gpu.utilisation_percent ?? 0) / 100 : colour === "memory" ? usedShare(gpu) ?? 0 : Math.max(0, ((gpu.temperature_c ?? 20) - 20) / 75);
  return [part > 0 ? 1 : 0, `hsl(${colour === "temperature" ? 220 - 220 * Math.min(1, part) : 215} 70% ${dark ? 22 + 45 * part : 88 - 48 * part}%)`];
}
function GpuTable({ gpus, chosen, choose }) {
  const columns = [
    {
      name: "GPU",
      of: (gpu) => /* @__PURE__ */ u4("button", { type: "button", class: "link", onClick: () => choose(gpuId(gpu)), children: gpuId(gpu) })
    },
    { name: "Model", of: (gpu) => gpu.model },
    { name: "State", of: (gpu) => /* @__PURE__ */ u4(State, { state: gpu.state }) },
    { name: "User", of: (gpu) => gpu.users.map((user) => /* @__PURE__ */ u4(Who, { name: user }, user)) },
    { name: "Jobs", of: (gpu) => gpu.jobs.slice(0, 4).map((job) => /* @__PURE__ */ u4(JobLink, { id: job }, job)) },
    { name: "Share", right: true, of: (gpu) => `${Math.round(gpu.allocated_share * 100)} %` },
    { name: "Memory", right: true, of: usedMemory },
    { name: "Busy", right: true, of: (gpu) => gpu.utilisation_percent === null ? "–" : `${gpu.utilisation_percent} %` },
    { name: "Temp.", right: true, of: degrees },
    { name: "Power", right: true, of: watts },
    { name: "Why it takes no work", grow: true, of: (gpu) => gpu.why }
  ];
  return /* @__PURE__ */ u4(WindowedTable, { columns, total: gpus.length, offset: 0, rows: gpus, id: gpuId, label: "GPUs", sort: "", current: chosen });
}
function GpuDetail({ gpu, close, refresh }) {
  const change2 = async (verb) => {
    const id = gpuId(gpu);
    const text = verb === "pause" ? "It gets no new jobs. Those that run on it continue." : "It gets new jobs again.";
    if (await ask(`${verb === "pause" ? "Pause" : "Resume"} ${id}?`, text, verb === "pause" ? "Pause" : "Resume") === null) return;
    await attempt(() => call(`POST /gpus/{node}/{index}/${verb}`, { path: { node: gpu.node, index: gpu.index } }), `${id} is ${verb}d.`);
    refresh();
  };
  return /* @__PURE__ */ u4("aside", { class: "card detail", "aria-label": `GPU ${gpuId(gpu)}`, children: [
    /* @__PURE__ */ u4("div", { class: "tile-head", children: [
      /* @__PURE__ */ u4("h2", { children: gpuId(gpu) }),
      /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": "Close", onClick: close, children: "×" })
    ] }),
    /* @__PURE__ */ u4(State, { state: gpu.state }),
    " ",
    gpu.why ? /* @__PURE__ */ u4("p", { class: "note", children: gpu.why }) : null,
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["Model", gpu.model],
          ["UUID", /* @__PURE__ */ u4("span", { class: "mono", children: gpu.uuid })],
          ["MIG", gpu.mig.join(", ")],
          ["Users", gpu.users.map((user) => /* @__PURE__ */ u4(Who, { name: user }, user))],
          ["Jobs", gpu.jobs.length ? gpu.jobs.map((job) => /* @__PURE__ */ u4(JobLink, { id: job }, job)) : "none"],
          ["Allocated", `${Math.round(gpu.allocated_share * 100)} %, ${memory(gpu.allocated_memory_mb)}`],
          ["Memory in use", usedMb(gpu) === null ? "" : usedMemory(gpu)],
          ["Utilisation", gpu.utilisation_percent === null ? "" : `${gpu.utilisation_percent} %`],
          ["Mean and peak", gpu.utilisation_mean_percent === null ? "" : `${gpu.utilisation_mean_percent} %, ${gpu.utilisation_peak_percent ?? 0} %`],
          ["Temperature", degrees(gpu)],
          ["Power", watts(gpu)]
        ]
      }
    ),
    gpu.processes.length ? /* @__PURE__ */ u4(S, { children: [
      /* @__PURE__ */ u4("h3", { children: "Processes" }),
      /* @__PURE__ */ u4(
        Table,
        {
          label: "Processes",
          rows: gpu.processes,
          id: (process) => String(process.pid),
          columns: [
            { name: "PID", of: (process) => process.pid },
            { name: "User", of: (process) => process.user },
            { name: "Memory", right: true, of: (process) => memory(process.memory_mb) },
            { name: "Job", of: (process) => process.job_id ? /* @__PURE__ */ u4(JobLink, { id: process.job_id }) : "none: foreign" },
            { name: "Command", of: (process) => /* @__PURE__ */ u4("span", { class: "mono", children: process.command }) }
          ]
        }
      )
    ] }) : null,
    me.value?.role === "admin" ? /* @__PURE__ */ u4("div", { class: "buttons", children: gpu.paused || gpu.state === "quarantined" ? /* @__PURE__ */ u4("button", { type: "button", onClick: () => void change2("resume"), children: "Resume" }) : /* @__PURE__ */ u4("button", { type: "button", onClick: () => void change2("pause"), children: "Pause" }) }) : null
  ] });
}

// src/actions.ts
var WORDS = {
  cancel: { title: "Cancel", text: "Running jobs are stopped; waiting ones leave the queue.", yes: "Cancel", done: "cancelled" },
  hold: { title: "Hold", text: "Held jobs keep their place but do not start until they are released.", yes: "Hold", done: "held" },
  release: { title: "Release", text: "They may start again.", yes: "Release", done: "released" },
  retry: { title: "Retry", text: "They go back into the queue.", yes: "Retry", done: "queued again" },
  priority: { title: "Change the priority of", text: "Higher starts earlier: low 250, normal 750, high 1500, urgent 2500; 0 to 10000.", yes: "Change", done: "changed" }
};
var UNDO = { hold: "release", release: "hold", cancel: "retry" };
var AT_ONCE = 8;
function send(action, id, value) {
  const path = { job_id: id };
  switch (action) {
    case "cancel":
      return call("DELETE /jobs/{job_id}", { path });
    case "priority": {
      const number = Number(value);
      return call("POST /jobs/{job_id}/priority", { path, body: { priority: Number.isNaN(number) ? value : number } });
    }
    case "retry":
      return call("POST /jobs/{job_id}/retry", { path });
    case "hold":
      return call("POST /jobs/{job_id}/hold", { path });
    case "release":
      return call("POST /jobs/{job_id}/release", { path });
  }
}
async function act(action, ids, after, current = 750) {
  const words2 = WORDS[action];
  const what = ids.length === 1 ? ids[0] ?? "" : plural(ids.length, "job");
  const input = action === "priority" ? { input: { label: "Priority", value: String(current) } } : {};
  const answer = await ask(`${words2.title} ${what}?`, words2.text, words2.yes, { danger: action === "cancel", ...input });
  if (answer === null) return;
  await apply(action, ids, answer);
  after();
}
async function apply(action, ids, value) {
  const done = [];
  const problems = [];
  const left = [...ids];
  const work = async () => {
    for (let id = left.shift(); id !== void 0; id = left.shift()) {
      try {
        await send(action, id, value);
        done.push(id);
      } catch (error) {
        problems.push(error instanceof Error ? error.message : id);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (done.length) {
    const back = UNDO[action];
    const what = done.length === 1 ? done[0] ?? "" : plural(done.length, "job");
    notify(`${what} ${WORDS[action].done}.`, back ? { undo: () => void apply(back, done, "") } : {});
  }
  if (problems.length) notify(`${plural(problems.length, "job")} not changed: ${problems[0]}`, { bad: true });
}

// node_modules/uplot/dist/uPlot.esm.js
var FEAT_TIME = true;
var pre = "u-";
var UPLOT = "uplot";
var ORI_HZ = pre + "hz";
var ORI_VT = pre + "vt";
var TITLE = pre + "title";
var WRAP = pre + "wrap";
var UNDER = pre + "under";
var OVER = pre + "over";
var AXIS = pre + "axis";
var OFF = pre + "off";
var SELECT = pre + "select";
var CURSOR_X = pre + "cursor-x";
var CURSOR_Y = pre + "cursor-y";
var CURSOR_PT = pre + "cursor-pt";
var LEGEND = pre + "legend";
var LEGEND_LIVE = pre + "live";
var LEGEND_INLINE = pre + "inline";
var LEGEND_SERIES = pre + "series";
var LEGEND_MARKER = pre + "marker";
var LEGEND_LABEL = pre + "label";
var LEGEND_VALUE = pre + "value";
var WIDTH = "width";
var HEIGHT = "height";
var TOP = "top";
var BOTTOM = "bottom";
var LEFT = "left";
var RIGHT = "right";
var hexBlack = "#000";
var transparent = hexBlack + "0";
var mousemove = "mousemove";
var mousedown = "mousedown";
var mouseup = "mouseup";
var mouseenter = "mouseenter";
var mouseleave = "mouseleave";
var dblclick = "dblclick";
var resize = "resize";
var scroll = "scroll";
var change = "change";
var dppxchange = "dppxchange";
var LEGEND_DISP = "--";
var domEnv = typeof window != "undefined";
var doc = domEnv ? document : null;
var win = domEnv ? window : null;
var nav = domEnv ? navigator : null;
var pxRatio;
var query;
function setPxRatio() {
  let _pxRatio = devicePixelRatio;
  if (pxRatio != _pxRatio) {
    pxRatio = _pxRatio;
    query && off(change, query, setPxRatio);
    query = matchMedia(`(min-resolution: ${pxRatio - 1e-3}dppx) and (max-resolution: ${pxRatio + 1e-3}dppx)`);
    on(change, query, setPxRatio);
    win.dispatchEvent(new CustomEvent(dppxchange));
  }
}
function addClass(el, c4) {
  if (c4 != null) {
    let cl = el.classList;
    !cl.contains(c4) && cl.add(c4);
  }
}
function remClass(el, c4) {
  let cl = el.classList;
  cl.contains(c4) && cl.remove(c4);
}
function setStylePx(el, name, value) {
  el.style[name] = value + "px";
}
function placeTag(tag, cls, targ, refEl) {
  let el = doc.createElement(tag);
  if (cls != null)
    addClass(el, cls);
  if (targ != null)
    targ.insertBefore(el, refEl);
  return el;
}
function placeDiv(cls, targ) {
  return placeTag("div", cls, targ);
}
var xformCache = /* @__PURE__ */ new WeakMap();
function elTrans(el, xPos, yPos, xMax, yMax) {
  let xform = "translate(" + xPos + "px," + yPos + "px)";
  let xformOld = xformCache.get(el);
  if (xform != xformOld) {
    el.style.transform = xform;
    xformCache.set(el, xform);
    if (xPos < 0 || yPos < 0 || xPos > xMax || yPos > yMax)
      addClass(el, OFF);
    else
      remClass(el, OFF);
  }
}
var colorCache = /* @__PURE__ */ new WeakMap();
function elColor(el, background, borderColor) {
  let newColor = background + borderColor;
  let oldColor = colorCache.get(el);
  if (newColor != oldColor) {
    colorCache.set(el, newColor);
    el.style.background = background;
    el.style.borderColor = borderColor;
  }
}
var sizeCache = /* @__PURE__ */ new WeakMap();
function elSize(el, newWid, newHgt, centered) {
  let newSize = newWid + "" + newHgt;
  let oldSize = sizeCache.get(el);
  if (newSize != oldSize) {
    sizeCache.set(el, newSize);
    el.style.height = newHgt + "px";
    el.style.width = newWid + "px";
    el.style.marginLeft = centered ? -newWid / 2 + "px" : 0;
    el.style.marginTop = centered ? -newHgt / 2 + "px" : 0;
  }
}
var evOpts = { passive: true };
var evOpts2 = { ...evOpts, capture: true };
function on(ev, el, cb, capt) {
  el.addEventListener(ev, cb, capt ? evOpts2 : evOpts);
}
function off(ev, el, cb, capt) {
  el.removeEventListener(ev, cb, evOpts);
}
domEnv && setPxRatio();
function closestIdx(num, arr, lo, hi) {
  let mid;
  lo = lo || 0;
  hi = hi || arr.length - 1;
  let bitwise = hi <= 2147483647;
  while (hi - lo > 1) {
    mid = bitwise ? lo + hi >> 1 : floor((lo + hi) / 2);
    if (arr[mid] < num)
      lo = mid;
    else
      hi = mid;
  }
  if (num - arr[lo] <= arr[hi] - num)
    return lo;
  return hi;
}
function makeIndexOfs(predicate) {
  let indexOfs = (data, _i0, _i1) => {
    let i0 = -1;
    let i1 = -1;
    for (let i4 = _i0; i4 <= _i1; i4++) {
      if (predicate(data[i4])) {
        i0 = i4;
        break;
      }
    }
    for (let i4 = _i1; i4 >= _i0; i4--) {
      if (predicate(data[i4])) {
        i1 = i4;
        break;
      }
    }
    return [i0, i1];
  };
  return indexOfs;
}
var notNullish = (v4) => v4 != null;
var isPositive = (v4) => v4 != null && v4 > 0;
var nonNullIdxs = makeIndexOfs(notNullish);
var positiveIdxs = makeIndexOfs(isPositive);
function getMinMax(data, _i0, _i1, sorted = 0, log = false) {
  let getEdgeIdxs = log ? positiveIdxs : nonNullIdxs;
  let predicate = log ? isPositive : notNullish;
  [_i0, _i1] = getEdgeIdxs(data, _i0, _i1);
  let _min = data[_i0];
  let _max = data[_i0];
  if (_i0 > -1) {
    if (sorted == 1) {
      _min = data[_i0];
      _max = data[_i1];
    } else if (sorted == -1) {
      _min = data[_i1];
      _max = data[_i0];
    } else {
      for (let i4 = _i0; i4 <= _i1; i4++) {
        let v4 = data[i4];
        if (predicate(v4)) {
          if (v4 < _min)
            _min = v4;
          else if (v4 > _max)
            _max = v4;
        }
      }
    }
  }
  return [_min ?? inf, _max ?? -inf];
}
function rangeLog(min2, max2, base, fullMags) {
  let minSign = sign(min2);
  let maxSign = sign(max2);
  if (min2 == max2) {
    if (minSign == -1) {
      min2 *= base;
      max2 /= base;
    } else {
      min2 /= base;
      max2 *= base;
    }
  }
  let logFn = base == 10 ? log10 : log2;
  let growMinAbs = minSign == 1 ? floor : ceil;
  let growMaxAbs = maxSign == 1 ? ceil : floor;
  let minExp = growMinAbs(logFn(abs(min2)));
  let maxExp = growMaxAbs(logFn(abs(max2)));
  let minIncr = pow(base, minExp);
  let maxIncr = pow(base, maxExp);
  if (base == 10) {
    if (minExp < 0)
      minIncr = roundDec(minIncr, -minExp);
    if (maxExp < 0)
      maxIncr = roundDec(maxIncr, -maxExp);
  }
  if (fullMags || base == 2) {
    min2 = minIncr * minSign;
    max2 = maxIncr * maxSign;
  } else {
    min2 = incrRoundDn(min2, minIncr);
    max2 = incrRoundUp(max2, maxIncr);
  }
  return [min2, max2];
}
function rangeAsinh(min2, max2, base, fullMags) {
  let minMax = rangeLog(min2, max2, base, fullMags);
  if (min2 == 0)
    minMax[0] = 0;
  if (max2 == 0)
    minMax[1] = 0;
  return minMax;
}
var rangePad = 0.1;
var autoRangePart = {
  mode: 3,
  pad: rangePad
};
var _eqRangePart = {
  pad: 0,
  soft: null,
  mode: 0
};
var _eqRange = {
  min: _eqRangePart,
  max: _eqRangePart
};
function rangeNum(_min, _max, mult, extra) {
  if (isObj(mult))
    return _rangeNum(_min, _max, mult);
  _eqRangePart.pad = mult;
  _eqRangePart.soft = extra ? 0 : null;
  _eqRangePart.mode = extra ? 3 : 0;
  return _rangeNum(_min, _max, _eqRange);
}
function ifNull(lh, rh) {
  return lh == null ? rh : lh;
}
function hasData(data, idx0, idx1) {
  idx0 = ifNull(idx0, 0);
  idx1 = ifNull(idx1, data.length - 1);
  while (idx0 <= idx1) {
    if (data[idx0] != null)
      return true;
    idx0++;
  }
  return false;
}
function _rangeNum(_min, _max, cfg) {
  let cmin = cfg.min;
  let cmax = cfg.max;
  let padMin = ifNull(cmin.pad, 0);
  let padMax = ifNull(cmax.pad, 0);
  let hardMin = ifNull(cmin.hard, -inf);
  let hardMax = ifNull(cmax.hard, inf);
  let softMin = ifNull(cmin.soft, inf);
  let softMax = ifNull(cmax.soft, -inf);
  let softMinMode = ifNull(cmin.mode, 0);
  let softMaxMode = ifNull(cmax.mode, 0);
  let delta = _max - _min;
  let deltaMag = log10(delta);
  let scalarMax = max(abs(_min), abs(_max));
  let scalarMag = log10(scalarMax);
  let scalarMagDelta = abs(scalarMag - deltaMag);
  if (delta < 1e-24 || scalarMagDelta > 10) {
    delta = 0;
    if (_min == 0 || _max == 0) {
      delta = 1e-24;
      if (softMinMode == 2 && softMin != inf)
        padMin = 0;
      if (softMaxMode == 2 && softMax != -inf)
        padMax = 0;
    }
  }
  let nonZeroDelta = delta || scalarMax || 1e3;
  let mag = log10(nonZeroDelta);
  let base = pow(10, floor(mag));
  let _padMin = nonZeroDelta * (delta == 0 ? _min == 0 ? 0.1 : 1 : padMin);
  let _newMin = roundDec(incrRoundDn(_min - _padMin, base / 10), 24);
  let _softMin = _min >= softMin && (softMinMode == 1 || softMinMode == 3 && _newMin <= softMin || softMinMode == 2 && _newMin >= softMin) ? softMin : inf;
  let minLim = max(hardMin, _newMin < _softMin && _min >= _softMin ? _softMin : min(_softMin, _newMin));
  let _padMax = nonZeroDelta * (delta == 0 ? _max == 0 ? 0.1 : 1 : padMax);
  let _newMax = roundDec(incrRoundUp(_max + _padMax, base / 10), 24);
  let _softMax = _max <= softMax && (softMaxMode == 1 || softMaxMode == 3 && _newMax >= softMax || softMaxMode == 2 && _newMax <= softMax) ? softMax : -inf;
  let maxLim = min(hardMax, _newMax > _softMax && _max <= _softMax ? _softMax : max(_softMax, _newMax));
  if (minLim == maxLim && minLim == 0)
    maxLim = 100;
  return [minLim, maxLim];
}
var numFormatter = new Intl.NumberFormat(domEnv ? nav.language : "en-US");
var fmtNum = (val) => numFormatter.format(val);
var M2 = Math;
var PI = M2.PI;
var abs = M2.abs;
var floor = M2.floor;
var round = M2.round;
var ceil = M2.ceil;
var min = M2.min;
var max = M2.max;
var pow = M2.pow;
var sign = M2.sign;
var log10 = M2.log10;
var log2 = M2.log2;
var sinh = (v4, linthresh = 1) => M2.sinh(v4) * linthresh;
var asinh = (v4, linthresh = 1) => M2.asinh(v4 / linthresh);
var inf = Infinity;
function numIntDigits(x3) {
  return (log10((x3 ^ x3 >> 31) - (x3 >> 31)) | 0) + 1;
}
function clamp(num, _min, _max) {
  return min(max(num, _min), _max);
}
function isFn(v4) {
  return typeof v4 == "function";
}
function fnOrSelf(v4) {
  return isFn(v4) ? v4 : () => v4;
}
var noop = () => {
};
var retArg0 = (_0) => _0;
var retArg1 = (_0, _1) => _1;
var retNull = (_6) => null;
var retTrue = (_6) => true;
var retEq = (a4, b4) => a4 == b4;
var regex6 = /\.\d*?(?=9{6,}|0{6,})/gm;
var fixFloat = (val) => {
  if (isInt(val) || fixedDec.has(val))
    return val;
  const str = `${val}`;
  const match = str.match(regex6);
  if (match == null)
    return val;
  let len = match[0].length - 1;
  if (str.indexOf("e-") != -1) {
    let [num, exp] = str.split("e");
    return +`${fixFloat(num)}e${exp}`;
  }
  return roundDec(val, len);
};
function incrRound(num, incr) {
  return fixFloat(roundDec(fixFloat(num / incr)) * incr);
}
function incrRoundUp(num, incr) {
  return fixFloat(ceil(fixFloat(num / incr)) * incr);
}
function incrRoundDn(num, incr) {
  return fixFloat(floor(fixFloat(num / incr)) * incr);
}
function roundDec(val, dec = 0) {
  if (isInt(val))
    return val;
  let p5 = 10 ** dec;
  let n3 = val * p5 * (1 + Number.EPSILON);
  return round(n3) / p5;
}
var fixedDec = /* @__PURE__ */ new Map();
function guessDec(num) {
  return (("" + num).split(".")[1] || "").length;
}
function genIncrs(base, minExp, maxExp, mults) {
  let incrs = [];
  let multDec = mults.map(guessDec);
  for (let exp = minExp; exp < maxExp; exp++) {
    let expa = abs(exp);
    let mag = roundDec(pow(base, exp), expa);
    for (let i4 = 0; i4 < mults.length; i4++) {
      let _incr = base == 10 ? +`${mults[i4]}e${exp}` : mults[i4] * mag;
      let dec = (exp >= 0 ? 0 : expa) + (exp >= multDec[i4] ? 0 : multDec[i4]);
      let incr = base == 10 ? _incr : roundDec(_incr, dec);
      incrs.push(incr);
      fixedDec.set(incr, dec);
    }
  }
  return incrs;
}
var EMPTY_OBJ = {};
var EMPTY_ARR = [];
var nullNullTuple = [null, null];
var isArr = Array.isArray;
var isInt = Number.isInteger;
var isUndef = (v4) => v4 === void 0;
function isStr(v4) {
  return typeof v4 == "string";
}
function isObj(v4) {
  let is = false;
  if (v4 != null) {
    let c4 = v4.constructor;
    is = c4 == null || c4 == Object;
  }
  return is;
}
function fastIsObj(v4) {
  return v4 != null && typeof v4 == "object";
}
var TypedArray = Object.getPrototypeOf(Uint8Array);
var __proto__ = "__proto__";
function copy(o4, _isObj = isObj) {
  let out;
  if (isArr(o4)) {
    let val = o4.find((v4) => v4 != null);
    if (isArr(val) || _isObj(val)) {
      out = Array(o4.length);
      for (let i4 = 0; i4 < o4.length; i4++)
        out[i4] = copy(o4[i4], _isObj);
    } else
      out = o4.slice();
  } else if (o4 instanceof TypedArray)
    out = o4.slice();
  else if (_isObj(o4)) {
    out = {};
    for (let k4 in o4) {
      if (k4 != __proto__)
        out[k4] = copy(o4[k4], _isObj);
    }
  } else
    out = o4;
  return out;
}
function assign(targ) {
  let args = arguments;
  for (let i4 = 1; i4 < args.length; i4++) {
    let src = args[i4];
    for (let key in src) {
      if (key != __proto__) {
        if (isObj(targ[key]))
          assign(targ[key], copy(src[key]));
        else
          targ[key] = copy(src[key]);
      }
    }
  }
  return targ;
}
var NULL_REMOVE = 0;
var NULL_RETAIN = 1;
var NULL_EXPAND = 2;
function nullExpand(yVals, nullIdxs, alignedLen) {
  for (let i4 = 0, xi, lastNullIdx = -1; i4 < nullIdxs.length; i4++) {
    let nullIdx = nullIdxs[i4];
    if (nullIdx > lastNullIdx) {
      xi = nullIdx - 1;
      while (xi >= 0 && yVals[xi] == null)
        yVals[xi--] = null;
      xi = nullIdx + 1;
      while (xi < alignedLen && yVals[xi] == null)
        yVals[lastNullIdx = xi++] = null;
    }
  }
}
function join(tables, nullModes) {
  if (allHeadersSame(tables)) {
    let table = tables[0].slice();
    for (let i4 = 1; i4 < tables.length; i4++)
      table.push(...tables[i4].slice(1));
    if (!isAsc(table[0]))
      table = sortCols(table);
    return table;
  }
  let xVals = /* @__PURE__ */ new Set();
  for (let ti = 0; ti < tables.length; ti++) {
    let t4 = tables[ti];
    let xs = t4[0];
    let len = xs.length;
    for (let i4 = 0; i4 < len; i4++)
      xVals.add(xs[i4]);
  }
  let data = [Array.from(xVals).sort((a4, b4) => a4 - b4)];
  let alignedLen = data[0].length;
  let xIdxs = /* @__PURE__ */ new Map();
  for (let i4 = 0; i4 < alignedLen; i4++)
    xIdxs.set(data[0][i4], i4);
  for (let ti = 0; ti < tables.length; ti++) {
    let t4 = tables[ti];
    let xs = t4[0];
    for (let si = 1; si < t4.length; si++) {
      let ys = t4[si];
      let yVals = Array(alignedLen).fill(void 0);
      let nullMode = nullModes ? nullModes[ti][si] : NULL_RETAIN;
      let nullIdxs = [];
      for (let i4 = 0; i4 < ys.length; i4++) {
        let yVal = ys[i4];
        let alignedIdx = xIdxs.get(xs[i4]);
        if (yVal === null) {
          if (nullMode != NULL_REMOVE) {
            yVals[alignedIdx] = yVal;
            if (nullMode == NULL_EXPAND)
              nullIdxs.push(alignedIdx);
          }
        } else
          yVals[alignedIdx] = yVal;
      }
      nullExpand(yVals, nullIdxs, alignedLen);
      data.push(yVals);
    }
  }
  return data;
}
var microTask = typeof queueMicrotask == "undefined" ? (fn) => Promise.resolve().then(fn) : queueMicrotask;
function sortCols(table) {
  let head = table[0];
  let rlen = head.length;
  let idxs = Array(rlen);
  for (let i4 = 0; i4 < idxs.length; i4++)
    idxs[i4] = i4;
  idxs.sort((i0, i1) => head[i0] - head[i1]);
  let table2 = [];
  for (let i4 = 0; i4 < table.length; i4++) {
    let row = table[i4];
    let row2 = Array(rlen);
    for (let j4 = 0; j4 < rlen; j4++)
      row2[j4] = row[idxs[j4]];
    table2.push(row2);
  }
  return table2;
}
function allHeadersSame(tables) {
  let vals0 = tables[0][0];
  let len0 = vals0.length;
  for (let i4 = 1; i4 < tables.length; i4++) {
    let vals1 = tables[i4][0];
    if (vals1.length != len0)
      return false;
    if (vals1 != vals0) {
      for (let j4 = 0; j4 < len0; j4++) {
        if (vals1[j4] != vals0[j4])
          return false;
      }
    }
  }
  return true;
}
function isAsc(vals, samples = 100) {
  const len = vals.length;
  if (len <= 1)
    return true;
  let firstIdx = 0;
  let lastIdx = len - 1;
  while (firstIdx <= lastIdx && vals[firstIdx] == null)
    firstIdx++;
  while (lastIdx >= firstIdx && vals[lastIdx] == null)
    lastIdx--;
  if (lastIdx <= firstIdx)
    return true;
  const stride = max(1, floor((lastIdx - firstIdx + 1) / samples));
  for (let prevVal = vals[firstIdx], i4 = firstIdx + stride; i4 <= lastIdx; i4 += stride) {
    const v4 = vals[i4];
    if (v4 != null) {
      if (v4 <= prevVal)
        return false;
      prevVal = v4;
    }
  }
  return true;
}
var months = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December"
];
var days = [
  "Sunday",
  "Monday",
  "Tuesday",
  "Wednesday",
  "Thursday",
  "Friday",
  "Saturday"
];
function slice3(str) {
  return str.slice(0, 3);
}
var days3 = days.map(slice3);
var months3 = months.map(slice3);
var engNames = {
  MMMM: months,
  MMM: months3,
  WWWW: days,
  WWW: days3
};
function zeroPad2(int) {
  return (int < 10 ? "0" : "") + int;
}
function zeroPad3(int) {
  return (int < 10 ? "00" : int < 100 ? "0" : "") + int;
}
var subs = {
  // 2019
  YYYY: (d4) => d4.getFullYear(),
  // 19
  YY: (d4) => (d4.getFullYear() + "").slice(2),
  // July
  MMMM: (d4, names) => names.MMMM[d4.getMonth()],
  // Jul
  MMM: (d4, names) => names.MMM[d4.getMonth()],
  // 07
  MM: (d4) => zeroPad2(d4.getMonth() + 1),
  // 7
  M: (d4) => d4.getMonth() + 1,
  // 09
  DD: (d4) => zeroPad2(d4.getDate()),
  // 9
  D: (d4) => d4.getDate(),
  // Monday
  WWWW: (d4, names) => names.WWWW[d4.getDay()],
  // Mon
  WWW: (d4, names) => names.WWW[d4.getDay()],
  // 03
  HH: (d4) => zeroPad2(d4.getHours()),
  // 3
  H: (d4) => d4.getHours(),
  // 9 (12hr, unpadded)
  h: (d4) => {
    let h5 = d4.getHours();
    return h5 == 0 ? 12 : h5 > 12 ? h5 - 12 : h5;
  },
  // AM
  AA: (d4) => d4.getHours() >= 12 ? "PM" : "AM",
  // am
  aa: (d4) => d4.getHours() >= 12 ? "pm" : "am",
  // a
  a: (d4) => d4.getHours() >= 12 ? "p" : "a",
  // 09
  mm: (d4) => zeroPad2(d4.getMinutes()),
  // 9
  m: (d4) => d4.getMinutes(),
  // 09
  ss: (d4) => zeroPad2(d4.getSeconds()),
  // 9
  s: (d4) => d4.getSeconds(),
  // 374
  fff: (d4) => zeroPad3(d4.getMilliseconds())
};
function fmtDate(tpl, names) {
  names = names || engNames;
  let parts = [];
  let R2 = /\{([a-z]+)\}|[^{]+/gi, m5;
  while (m5 = R2.exec(tpl))
    parts.push(m5[0][0] == "{" ? subs[m5[1]] : m5[0]);
  return (d4) => {
    let out = "";
    for (let i4 = 0; i4 < parts.length; i4++)
      out += typeof parts[i4] == "string" ? parts[i4] : parts[i4](d4, names);
    return out;
  };
}
var localTz = new Intl.DateTimeFormat().resolvedOptions().timeZone;
function tzDate(date, tz) {
  let date2;
  if (tz == "UTC" || tz == "Etc/UTC")
    date2 = new Date(+date + date.getTimezoneOffset() * 6e4);
  else if (tz == localTz)
    date2 = date;
  else {
    date2 = new Date(date.toLocaleString("en-US", { timeZone: tz }));
    date2.setMilliseconds(date.getMilliseconds());
  }
  return date2;
}
var onlyWhole = (v4) => v4 % 1 == 0;
var allMults = [1, 2, 2.5, 5];
var decIncrs = genIncrs(10, -32, 0, allMults);
var oneIncrs = genIncrs(10, 0, 32, allMults);
var wholeIncrs = oneIncrs.filter(onlyWhole);
var numIncrs = decIncrs.concat(oneIncrs);
var NL = "\n";
var yyyy = "{YYYY}";
var NLyyyy = NL + yyyy;
var md = "{M}/{D}";
var NLmd = NL + md;
var NLmdyy = NLmd + "/{YY}";
var aa = "{aa}";
var hmm = "{h}:{mm}";
var hmmaa = hmm + aa;
var NLhmmaa = NL + hmmaa;
var ss = ":{ss}";
var _5 = null;
function genTimeStuffs(ms) {
  let s4 = ms * 1e3, m5 = s4 * 60, h5 = m5 * 60, d4 = h5 * 24, mo = d4 * 30, y5 = d4 * 365;
  let subSecIncrs = ms == 1 ? genIncrs(10, 0, 3, allMults).filter(onlyWhole) : genIncrs(10, -3, 0, allMults);
  let timeIncrs = subSecIncrs.concat([
    // minute divisors (# of secs)
    s4,
    s4 * 5,
    s4 * 10,
    s4 * 15,
    s4 * 30,
    // hour divisors (# of mins)
    m5,
    m5 * 5,
    m5 * 10,
    m5 * 15,
    m5 * 30,
    // day divisors (# of hrs)
    h5,
    h5 * 2,
    h5 * 3,
    h5 * 4,
    h5 * 6,
    h5 * 8,
    h5 * 12,
    // month divisors TODO: need more?
    d4,
    d4 * 2,
    d4 * 3,
    d4 * 4,
    d4 * 5,
    d4 * 6,
    d4 * 7,
    d4 * 8,
    d4 * 9,
    d4 * 10,
    d4 * 15,
    // year divisors (# months, approx)
    mo,
    mo * 2,
    mo * 3,
    mo * 4,
    mo * 6,
    // century divisors
    y5,
    y5 * 2,
    y5 * 5,
    y5 * 10,
    y5 * 25,
    y5 * 50,
    y5 * 100
  ]);
  const _timeAxisStamps = [
    //   tick incr    default          year                    month   day                   hour    min       sec   mode
    [y5, yyyy, _5, _5, _5, _5, _5, _5, 1],
    [d4 * 28, "{MMM}", NLyyyy, _5, _5, _5, _5, _5, 1],
    [d4, md, NLyyyy, _5, _5, _5, _5, _5, 1],
    [h5, "{h}" + aa, NLmdyy, _5, NLmd, _5, _5, _5, 1],
    [m5, hmmaa, NLmdyy, _5, NLmd, _5, _5, _5, 1],
    [s4, ss, NLmdyy + " " + hmmaa, _5, NLmd + " " + hmmaa, _5, NLhmmaa, _5, 1],
    [ms, ss + ".{fff}", NLmdyy + " " + hmmaa, _5, NLmd + " " + hmmaa, _5, NLhmmaa, _5, 1]
  ];
  function timeAxisSplits(tzDate2) {
    return (self, axisIdx, scaleMin, scaleMax, foundIncr, foundSpace) => {
      let splits = [];
      let isYr = foundIncr >= y5;
      let isMo = foundIncr >= mo && foundIncr < y5;
      let minDate = tzDate2(scaleMin);
      let minDateTs = roundDec(minDate * ms, 3);
      let minMin = mkDate(minDate.getFullYear(), isYr ? 0 : minDate.getMonth(), isMo || isYr ? 1 : minDate.getDate());
      let minMinTs = roundDec(minMin * ms, 3);
      if (isMo || isYr) {
        let moIncr = isMo ? foundIncr / mo : 0;
        let yrIncr = isYr ? foundIncr / y5 : 0;
        let split = minDateTs == minMinTs ? minDateTs : roundDec(mkDate(minMin.getFullYear() + yrIncr, minMin.getMonth() + moIncr, 1) * ms, 3);
        let splitDate = new Date(round(split / ms));
        let baseYear = splitDate.getFullYear();
        let baseMonth = splitDate.getMonth();
        for (let i4 = 0; split <= scaleMax; i4++) {
          let next = mkDate(baseYear + yrIncr * i4, baseMonth + moIncr * i4, 1);
          let offs = next - tzDate2(roundDec(next * ms, 3));
          split = roundDec((+next + offs) * ms, 3);
          if (split <= scaleMax)
            splits.push(split);
        }
      } else {
        let incr0 = foundIncr >= d4 ? d4 : foundIncr;
        let tzOffset = floor(scaleMin) - floor(minDateTs);
        let split = minMinTs + tzOffset + incrRoundUp(minDateTs - minMinTs, incr0);
        splits.push(split);
        let date0 = tzDate2(split);
        let prevHour = date0.getHours() + date0.getMinutes() / m5 + date0.getSeconds() / h5;
        let incrHours = foundIncr / h5;
        let minSpace = self.axes[axisIdx]._space;
        let pctSpace = foundSpace / minSpace;
        while (1) {
          split = roundDec(split + foundIncr, ms == 1 ? 0 : 3);
          if (split > scaleMax)
            break;
          if (incrHours > 1) {
            let expectedHour = floor(roundDec(prevHour + incrHours, 6)) % 24;
            let splitDate = tzDate2(split);
            let actualHour = splitDate.getHours();
            let dstShift = actualHour - expectedHour;
            if (dstShift > 1)
              dstShift = -1;
            split -= dstShift * h5;
            prevHour = (prevHour + incrHours) % 24;
            let prevSplit = splits[splits.length - 1];
            let pctIncr = roundDec((split - prevSplit) / foundIncr, 3);
            if (pctIncr * pctSpace >= 0.7)
              splits.push(split);
          } else
            splits.push(split);
        }
      }
      return splits;
    };
  }
  return [
    timeIncrs,
    _timeAxisStamps,
    timeAxisSplits
  ];
}
var [timeIncrsMs, _timeAxisStampsMs, timeAxisSplitsMs] = genTimeStuffs(1);
var [timeIncrsS, _timeAxisStampsS, timeAxisSplitsS] = genTimeStuffs(1e-3);
genIncrs(2, -53, 53, [1]);
function timeAxisStamps(stampCfg, fmtDate2) {
  return stampCfg.map((s4) => s4.map(
    (v4, i4) => i4 == 0 || i4 == 8 || v4 == null ? v4 : fmtDate2(i4 == 1 || s4[8] == 0 ? v4 : s4[1] + v4)
  ));
}
function timeAxisVals(tzDate2, stamps) {
  return (self, splits, axisIdx, foundSpace, foundIncr) => {
    let s4 = stamps.find((s5) => foundIncr >= s5[0]) || stamps[stamps.length - 1];
    let prevYear;
    let prevMnth;
    let prevDate;
    let prevHour;
    let prevMins;
    let prevSecs;
    return splits.map((split) => {
      let date = tzDate2(split);
      let newYear = date.getFullYear();
      let newMnth = date.getMonth();
      let newDate = date.getDate();
      let newHour = date.getHours();
      let newMins = date.getMinutes();
      let newSecs = date.getSeconds();
      let stamp = newYear != prevYear && s4[2] || newMnth != prevMnth && s4[3] || newDate != prevDate && s4[4] || newHour != prevHour && s4[5] || newMins != prevMins && s4[6] || newSecs != prevSecs && s4[7] || s4[1];
      prevYear = newYear;
      prevMnth = newMnth;
      prevDate = newDate;
      prevHour = newHour;
      prevMins = newMins;
      prevSecs = newSecs;
      return stamp(date);
    });
  };
}
function timeAxisVal(tzDate2, dateTpl) {
  let stamp = fmtDate(dateTpl);
  return (self, splits, axisIdx, foundSpace, foundIncr) => splits.map((split) => stamp(tzDate2(split)));
}
function mkDate(y5, m5, d4) {
  return new Date(y5, m5, d4);
}
function timeSeriesStamp(stampCfg, fmtDate2) {
  return fmtDate2(stampCfg);
}
var _timeSeriesStamp = "{YYYY}-{MM}-{DD} {h}:{mm}{aa}";
function timeSeriesVal(tzDate2, stamp) {
  return (self, val, seriesIdx, dataIdx) => dataIdx == null ? LEGEND_DISP : stamp(tzDate2(val));
}
function legendStroke(self, seriesIdx) {
  let s4 = self.series[seriesIdx];
  return s4.width ? s4.stroke(self, seriesIdx) : s4.points.width ? s4.points.stroke(self, seriesIdx) : null;
}
function legendFill(self, seriesIdx) {
  return self.series[seriesIdx].fill(self, seriesIdx);
}
var legendOpts = {
  show: true,
  live: true,
  isolate: false,
  mount: noop,
  markers: {
    show: true,
    width: 2,
    stroke: legendStroke,
    fill: legendFill,
    dash: "solid"
  },
  idx: null,
  idxs: null,
  values: []
};
function cursorPointShow(self, si) {
  let o4 = self.cursor.points;
  let pt = placeDiv();
  let size = o4.size(self, si);
  setStylePx(pt, WIDTH, size);
  setStylePx(pt, HEIGHT, size);
  let mar = size / -2;
  setStylePx(pt, "marginLeft", mar);
  setStylePx(pt, "marginTop", mar);
  let width = o4.width(self, si, size);
  width && setStylePx(pt, "borderWidth", width);
  return pt;
}
function cursorPointFill(self, si) {
  let sp = self.series[si].points;
  return sp._fill || sp._stroke;
}
function cursorPointStroke(self, si) {
  let sp = self.series[si].points;
  return sp._stroke || sp._fill;
}
function cursorPointSize(self, si) {
  let sp = self.series[si].points;
  return sp.size;
}
var moveTuple = [0, 0];
function cursorMove(self, mouseLeft1, mouseTop1) {
  moveTuple[0] = mouseLeft1;
  moveTuple[1] = mouseTop1;
  return moveTuple;
}
function filtBtn0(self, targ, handle, onlyTarg = true) {
  return (e4) => {
    e4.button == 0 && (!onlyTarg || e4.target == targ) && handle(e4);
  };
}
function filtTarg(self, targ, handle, onlyTarg = true) {
  return (e4) => {
    (!onlyTarg || e4.target == targ) && handle(e4);
  };
}
var cursorOpts = {
  show: true,
  x: true,
  y: true,
  lock: false,
  move: cursorMove,
  points: {
    one: false,
    show: cursorPointShow,
    size: cursorPointSize,
    width: 0,
    stroke: cursorPointStroke,
    fill: cursorPointFill
  },
  bind: {
    mousedown: filtBtn0,
    mouseup: filtBtn0,
    click: filtBtn0,
    // legend clicks, not .u-over clicks
    dblclick: filtBtn0,
    mousemove: filtTarg,
    mouseleave: filtTarg,
    mouseenter: filtTarg
  },
  drag: {
    setScale: true,
    x: true,
    y: false,
    dist: 0,
    uni: null,
    click: (self, e4) => {
      e4.stopPropagation();
      e4.stopImmediatePropagation();
    },
    _x: false,
    _y: false
  },
  focus: {
    dist: (self, seriesIdx, dataIdx, valPos, curPos) => valPos - curPos,
    prox: -1,
    bias: 0
  },
  hover: {
    skip: [void 0],
    prox: null,
    bias: 0
  },
  left: -10,
  top: -10,
  idx: null,
  dataIdx: null,
  idxs: null,
  event: null
};
var axisLines = {
  show: true,
  stroke: "rgba(0,0,0,0.07)",
  width: 2
  //	dash: [],
};
var grid = assign({}, axisLines, {
  filter: retArg1
});
var ticks = assign({}, grid, {
  size: 10
});
var border = assign({}, axisLines, {
  show: false
});
var font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Noto Sans", sans-serif, "Apple Color Emoji", "Segoe UI Emoji", "Segoe UI Symbol", "Noto Color Emoji"';
var labelFont = "bold " + font;
var lineGap = 1.5;
var xAxisOpts = {
  show: true,
  scale: "x",
  stroke: hexBlack,
  space: 50,
  gap: 5,
  alignTo: 1,
  size: 50,
  labelGap: 0,
  labelSize: 30,
  labelFont,
  side: 2,
  //	class: "x-vals",
  //	incrs: timeIncrs,
  //	values: timeVals,
  //	filter: retArg1,
  grid,
  ticks,
  border,
  font,
  lineGap,
  rotate: 0
};
var numSeriesLabel = "Value";
var timeSeriesLabel = "Time";
var xSeriesOpts = {
  show: true,
  scale: "x",
  auto: false,
  sorted: 1,
  //	label: "Time",
  //	value: v => stamp(new Date(v * 1e3)),
  // internal caches
  min: inf,
  max: -inf,
  idxs: []
};
function numAxisVals(self, splits, axisIdx, foundSpace, foundIncr) {
  return splits.map((v4) => v4 == null ? "" : fmtNum(v4));
}
function numAxisSplits(self, axisIdx, scaleMin, scaleMax, foundIncr, foundSpace, forceMin) {
  let splits = [];
  let numDec = fixedDec.get(foundIncr) || 0;
  scaleMin = forceMin ? scaleMin : roundDec(incrRoundUp(scaleMin, foundIncr), numDec);
  for (let val = scaleMin; val <= scaleMax; val = roundDec(val + foundIncr, numDec))
    splits.push(Object.is(val, -0) ? 0 : val);
  return splits;
}
function logAxisSplits(self, axisIdx, scaleMin, scaleMax, foundIncr, foundSpace, forceMin) {
  const splits = [];
  const logBase = self.scales[self.axes[axisIdx].scale].log;
  const logFn = logBase == 10 ? log10 : log2;
  const exp = floor(logFn(scaleMin));
  foundIncr = pow(logBase, exp);
  if (logBase == 10)
    foundIncr = numIncrs[closestIdx(foundIncr, numIncrs)];
  let split = scaleMin;
  let nextMagIncr = foundIncr * logBase;
  if (logBase == 10)
    nextMagIncr = numIncrs[closestIdx(nextMagIncr, numIncrs)];
  do {
    splits.push(split);
    split = split + foundIncr;
    if (logBase == 10 && !fixedDec.has(split))
      split = roundDec(split, fixedDec.get(foundIncr));
    if (split >= nextMagIncr) {
      foundIncr = split;
      nextMagIncr = foundIncr * logBase;
      if (logBase == 10)
        nextMagIncr = numIncrs[closestIdx(nextMagIncr, numIncrs)];
    }
  } while (split <= scaleMax);
  return splits;
}
function asinhAxisSplits(self, axisIdx, scaleMin, scaleMax, foundIncr, foundSpace, forceMin) {
  let sc = self.scales[self.axes[axisIdx].scale];
  let linthresh = sc.asinh;
  let posSplits = scaleMax > linthresh ? logAxisSplits(self, axisIdx, max(linthresh, scaleMin), scaleMax, foundIncr) : [linthresh];
  let zero = scaleMax >= 0 && scaleMin <= 0 ? [0] : [];
  let negSplits = scaleMin < -linthresh ? logAxisSplits(self, axisIdx, max(linthresh, -scaleMax), -scaleMin, foundIncr) : [linthresh];
  return negSplits.reverse().map((v4) => -v4).concat(zero, posSplits);
}
var RE_ALL = /./;
var RE_12357 = /[12357]/;
var RE_125 = /[125]/;
var RE_1 = /1/;
var _filt = (splits, distr, re, keepMod) => splits.map((v4, i4) => distr == 4 && v4 == 0 || i4 % keepMod == 0 && re.test(v4.toExponential()[v4 < 0 ? 1 : 0]) ? v4 : null);
function log10AxisValsFilt(self, splits, axisIdx, foundSpace, foundIncr) {
  let axis = self.axes[axisIdx];
  let scaleKey = axis.scale;
  let sc = self.scales[scaleKey];
  let valToPos = self.valToPos;
  let minSpace = axis._space;
  let _10 = valToPos(10, scaleKey);
  let re = valToPos(9, scaleKey) - _10 >= minSpace ? RE_ALL : valToPos(7, scaleKey) - _10 >= minSpace ? RE_12357 : valToPos(5, scaleKey) - _10 >= minSpace ? RE_125 : RE_1;
  if (re == RE_1) {
    let magSpace = abs(valToPos(1, scaleKey) - _10);
    if (magSpace < minSpace)
      return _filt(splits.slice().reverse(), sc.distr, re, ceil(minSpace / magSpace)).reverse();
  }
  return _filt(splits, sc.distr, re, 1);
}
function log2AxisValsFilt(self, splits, axisIdx, foundSpace, foundIncr) {
  let axis = self.axes[axisIdx];
  let scaleKey = axis.scale;
  let minSpace = axis._space;
  let valToPos = self.valToPos;
  let magSpace = abs(valToPos(1, scaleKey) - valToPos(2, scaleKey));
  if (magSpace < minSpace)
    return _filt(splits.slice().reverse(), 3, RE_ALL, ceil(minSpace / magSpace)).reverse();
  return splits;
}
function numSeriesVal(self, val, seriesIdx, dataIdx) {
  return dataIdx == null ? LEGEND_DISP : val == null ? "" : fmtNum(val);
}
var yAxisOpts = {
  show: true,
  scale: "y",
  stroke: hexBlack,
  space: 30,
  gap: 5,
  alignTo: 1,
  size: 50,
  labelGap: 0,
  labelSize: 30,
  labelFont,
  side: 3,
  //	class: "y-vals",
  //	incrs: numIncrs,
  //	values: (vals, space) => vals,
  //	filter: retArg1,
  grid,
  ticks,
  border,
  font,
  lineGap,
  rotate: 0
};
function ptDia(width, mult) {
  let dia = 3 + (width || 1) * 2;
  return roundDec(dia * mult, 3);
}
function seriesPointsShow(self, si) {
  let { scale, idxs } = self.series[0];
  let xData = self._data[0];
  let p0 = self.valToPos(xData[idxs[0]], scale, true);
  let p1 = self.valToPos(xData[idxs[1]], scale, true);
  let dim = abs(p1 - p0);
  let s4 = self.series[si];
  let maxPts = dim / (s4.points.space * pxRatio);
  return idxs[1] - idxs[0] <= maxPts;
}
var facet = {
  scale: null,
  auto: true,
  sorted: 0,
  // internal caches
  min: inf,
  max: -inf
};
var gaps = (self, seriesIdx, idx0, idx1, nullGaps) => nullGaps;
var xySeriesOpts = {
  show: true,
  auto: true,
  sorted: 0,
  gaps,
  alpha: 1,
  facets: [
    assign({}, facet, { scale: "x" }),
    assign({}, facet, { scale: "y" })
  ]
};
var ySeriesOpts = {
  scale: "y",
  auto: true,
  sorted: 0,
  show: true,
  spanGaps: false,
  gaps,
  alpha: 1,
  points: {
    show: seriesPointsShow,
    filter: null
    //  paths:
    //	stroke: "#000",
    //	fill: "#fff",
    //	width: 1,
    //	size: 10,
  },
  //	label: "Value",
  //	value: v => v,
  values: null,
  // internal caches
  min: inf,
  max: -inf,
  idxs: [],
  path: null,
  clip: null
};
function clampScale(self, val, scaleMin, scaleMax, scaleKey) {
  return scaleMin / 10;
}
var xScaleOpts = {
  time: FEAT_TIME,
  auto: true,
  distr: 1,
  log: 10,
  asinh: 1,
  min: null,
  max: null,
  dir: 1,
  ori: 0
};
var yScaleOpts = assign({}, xScaleOpts, {
  time: false,
  ori: 1
});
var syncs = {};
function _sync(key, opts) {
  let s4 = syncs[key];
  if (!s4) {
    s4 = {
      key,
      plots: [],
      sub(plot) {
        s4.plots.push(plot);
      },
      unsub(plot) {
        s4.plots = s4.plots.filter((c4) => c4 != plot);
      },
      pub(type, self, x3, y5, w4, h5, i4) {
        for (let j4 = 0; j4 < s4.plots.length; j4++)
          s4.plots[j4] != self && s4.plots[j4].pub(type, self, x3, y5, w4, h5, i4);
      }
    };
    if (key != null)
      syncs[key] = s4;
  }
  return s4;
}
var BAND_CLIP_FILL = 1 << 0;
var BAND_CLIP_STROKE = 1 << 1;
function orient(u5, seriesIdx, cb) {
  const mode = u5.mode;
  const series = u5.series[seriesIdx];
  const data = mode == 2 ? u5._data[seriesIdx] : u5._data;
  const scales = u5.scales;
  const bbox = u5.bbox;
  let dx = data[0], dy = mode == 2 ? data[1] : data[seriesIdx], sx = mode == 2 ? scales[series.facets[0].scale] : scales[u5.series[0].scale], sy = mode == 2 ? scales[series.facets[1].scale] : scales[series.scale], l5 = bbox.left, t4 = bbox.top, w4 = bbox.width, h5 = bbox.height, H2 = u5.valToPosH, V2 = u5.valToPosV;
  return sx.ori == 0 ? cb(
    series,
    dx,
    dy,
    sx,
    sy,
    H2,
    V2,
    l5,
    t4,
    w4,
    h5,
    moveToH,
    lineToH,
    rectH,
    arcH,
    bezierCurveToH
  ) : cb(
    series,
    dx,
    dy,
    sx,
    sy,
    V2,
    H2,
    t4,
    l5,
    h5,
    w4,
    moveToV,
    lineToV,
    rectV,
    arcV,
    bezierCurveToV
  );
}
function bandFillClipDirs(self, seriesIdx) {
  let fillDir = 0;
  let clipDirs = 0;
  let bands = ifNull(self.bands, EMPTY_ARR);
  for (let i4 = 0; i4 < bands.length; i4++) {
    let b4 = bands[i4];
    if (b4.series[0] == seriesIdx)
      fillDir = b4.dir;
    else if (b4.series[1] == seriesIdx) {
      if (b4.dir == 1)
        clipDirs |= 1;
      else
        clipDirs |= 2;
    }
  }
  return [
    fillDir,
    clipDirs == 1 ? -1 : (
      // neg only
      clipDirs == 2 ? 1 : (
        // pos only
        clipDirs == 3 ? 2 : (
          // both
          0
        )
      )
    )
  ];
}
function seriesFillTo(self, seriesIdx, dataMin, dataMax, bandFillDir) {
  let mode = self.mode;
  let series = self.series[seriesIdx];
  let scaleKey = mode == 2 ? series.facets[1].scale : series.scale;
  let scale = self.scales[scaleKey];
  return bandFillDir == -1 ? scale.min : bandFillDir == 1 ? scale.max : scale.distr == 3 ? scale.dir == 1 ? scale.min : scale.max : 0;
}
function clipBandLine(self, seriesIdx, idx0, idx1, strokePath, clipDir) {
  return orient(self, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
    let pxRound = series.pxRound;
    const dir = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
    const lineTo = scaleX.ori == 0 ? lineToH : lineToV;
    let frIdx, toIdx;
    if (dir == 1) {
      frIdx = idx0;
      toIdx = idx1;
    } else {
      frIdx = idx1;
      toIdx = idx0;
    }
    let x0 = pxRound(valToPosX(dataX[frIdx], scaleX, xDim, xOff));
    let y0 = pxRound(valToPosY(dataY[frIdx], scaleY, yDim, yOff));
    let x1 = pxRound(valToPosX(dataX[toIdx], scaleX, xDim, xOff));
    let yLimit = pxRound(valToPosY(clipDir == 1 ? scaleY.max : scaleY.min, scaleY, yDim, yOff));
    let clip = new Path2D(strokePath);
    lineTo(clip, x1, yLimit);
    lineTo(clip, x0, yLimit);
    lineTo(clip, x0, y0);
    return clip;
  });
}
function clipGaps(gaps2, ori, plotLft, plotTop, plotWid, plotHgt) {
  let clip = null;
  if (gaps2.length > 0) {
    clip = new Path2D();
    const rect2 = ori == 0 ? rectH : rectV;
    let prevGapEnd = plotLft;
    for (let i4 = 0; i4 < gaps2.length; i4++) {
      let g4 = gaps2[i4];
      if (g4[1] > g4[0]) {
        let w5 = g4[0] - prevGapEnd;
        w5 > 0 && rect2(clip, prevGapEnd, plotTop, w5, plotTop + plotHgt);
        prevGapEnd = g4[1];
      }
    }
    let w4 = plotLft + plotWid - prevGapEnd;
    let maxStrokeWidth = 10;
    w4 > 0 && rect2(clip, prevGapEnd, plotTop - maxStrokeWidth / 2, w4, plotTop + plotHgt + maxStrokeWidth);
  }
  return clip;
}
function addGap(gaps2, fromX, toX) {
  let prevGap = gaps2[gaps2.length - 1];
  if (prevGap && prevGap[0] == fromX)
    prevGap[1] = toX;
  else
    gaps2.push([fromX, toX]);
}
function findGaps(xs, ys, idx0, idx1, dir, pixelForX, align) {
  let gaps2 = [];
  let len = xs.length;
  for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
    let yVal = ys[i4];
    if (yVal === null) {
      let fr = i4, to = i4;
      if (dir == 1) {
        while (++i4 <= idx1 && ys[i4] === null)
          to = i4;
      } else {
        while (--i4 >= idx0 && ys[i4] === null)
          to = i4;
      }
      let frPx = pixelForX(xs[fr]);
      let toPx = to == fr ? frPx : pixelForX(xs[to]);
      let fri2 = fr - dir;
      let frPx2 = align <= 0 && fri2 >= 0 && fri2 < len ? pixelForX(xs[fri2]) : frPx;
      frPx = frPx2;
      let toi2 = to + dir;
      let toPx2 = align >= 0 && toi2 >= 0 && toi2 < len ? pixelForX(xs[toi2]) : toPx;
      toPx = toPx2;
      if (toPx >= frPx)
        gaps2.push([frPx, toPx]);
    }
  }
  return gaps2;
}
function pxRoundGen(pxAlign) {
  return pxAlign == 0 ? retArg0 : pxAlign == 1 ? round : (v4) => incrRound(v4, pxAlign);
}
function rect(ori) {
  let moveTo = ori == 0 ? moveToH : moveToV;
  let arcTo = ori == 0 ? (p5, x1, y1, x22, y22, r4) => {
    p5.arcTo(x1, y1, x22, y22, r4);
  } : (p5, y1, x1, y22, x22, r4) => {
    p5.arcTo(x1, y1, x22, y22, r4);
  };
  let rect2 = ori == 0 ? (p5, x3, y5, w4, h5) => {
    p5.rect(x3, y5, w4, h5);
  } : (p5, y5, x3, h5, w4) => {
    p5.rect(x3, y5, w4, h5);
  };
  return (p5, x3, y5, w4, h5, endRad = 0, baseRad = 0) => {
    if (endRad == 0 && baseRad == 0)
      rect2(p5, x3, y5, w4, h5);
    else {
      endRad = min(endRad, w4 / 2, h5 / 2);
      baseRad = min(baseRad, w4 / 2, h5 / 2);
      moveTo(p5, x3 + endRad, y5);
      arcTo(p5, x3 + w4, y5, x3 + w4, y5 + h5, endRad);
      arcTo(p5, x3 + w4, y5 + h5, x3, y5 + h5, baseRad);
      arcTo(p5, x3, y5 + h5, x3, y5, baseRad);
      arcTo(p5, x3, y5, x3 + w4, y5, endRad);
      p5.closePath();
    }
  };
}
var moveToH = (p5, x3, y5) => {
  p5.moveTo(x3, y5);
};
var moveToV = (p5, y5, x3) => {
  p5.moveTo(x3, y5);
};
var lineToH = (p5, x3, y5) => {
  p5.lineTo(x3, y5);
};
var lineToV = (p5, y5, x3) => {
  p5.lineTo(x3, y5);
};
var rectH = rect(0);
var rectV = rect(1);
var arcH = (p5, x3, y5, r4, startAngle, endAngle) => {
  p5.arc(x3, y5, r4, startAngle, endAngle);
};
var arcV = (p5, y5, x3, r4, startAngle, endAngle) => {
  p5.arc(x3, y5, r4, startAngle, endAngle);
};
var bezierCurveToH = (p5, bp1x, bp1y, bp2x, bp2y, p2x, p2y) => {
  p5.bezierCurveTo(bp1x, bp1y, bp2x, bp2y, p2x, p2y);
};
var bezierCurveToV = (p5, bp1y, bp1x, bp2y, bp2x, p2y, p2x) => {
  p5.bezierCurveTo(bp1x, bp1y, bp2x, bp2y, p2x, p2y);
};
function points(opts) {
  return (u5, seriesIdx, idx0, idx1, filtIdxs) => {
    return orient(u5, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      let { pxRound, points: points2 } = series;
      let moveTo, arc;
      if (scaleX.ori == 0) {
        moveTo = moveToH;
        arc = arcH;
      } else {
        moveTo = moveToV;
        arc = arcV;
      }
      const width = roundDec(points2.width * pxRatio, 3);
      let rad = (points2.size - points2.width) / 2 * pxRatio;
      let dia = roundDec(rad * 2, 3);
      let fill2 = new Path2D();
      let clip = new Path2D();
      let { left: lft, top, width: wid, height: hgt } = u5.bbox;
      rectH(
        clip,
        lft - dia,
        top - dia,
        wid + dia * 2,
        hgt + dia * 2
      );
      const drawPoint = (pi) => {
        if (dataY[pi] != null) {
          let x3 = pxRound(valToPosX(dataX[pi], scaleX, xDim, xOff));
          let y5 = pxRound(valToPosY(dataY[pi], scaleY, yDim, yOff));
          moveTo(fill2, x3 + rad, y5);
          arc(fill2, x3, y5, rad, 0, PI * 2);
        }
      };
      if (filtIdxs)
        filtIdxs.forEach(drawPoint);
      else {
        for (let pi = idx0; pi <= idx1; pi++)
          drawPoint(pi);
      }
      return {
        stroke: width > 0 ? fill2 : null,
        fill: fill2,
        clip,
        flags: BAND_CLIP_FILL | BAND_CLIP_STROKE
      };
    });
  };
}
function _drawAcc(lineTo) {
  return (stroke, accX, minY, maxY, inY, outY) => {
    if (minY != maxY) {
      if (inY != minY && outY != minY)
        lineTo(stroke, accX, minY);
      if (inY != maxY && outY != maxY)
        lineTo(stroke, accX, maxY);
      lineTo(stroke, accX, outY);
    }
  };
}
var drawAccH = _drawAcc(lineToH);
var drawAccV = _drawAcc(lineToV);
function linear(opts) {
  const alignGaps = ifNull(opts?.alignGaps, 0);
  return (u5, seriesIdx, idx0, idx1) => {
    return orient(u5, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      [idx0, idx1] = nonNullIdxs(dataY, idx0, idx1);
      let pxRound = series.pxRound;
      let pixelForX = (val) => pxRound(valToPosX(val, scaleX, xDim, xOff));
      let pixelForY = (val) => pxRound(valToPosY(val, scaleY, yDim, yOff));
      let lineTo, drawAcc;
      if (scaleX.ori == 0) {
        lineTo = lineToH;
        drawAcc = drawAccH;
      } else {
        lineTo = lineToV;
        drawAcc = drawAccV;
      }
      const dir = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
      const _paths = { stroke: new Path2D(), fill: null, clip: null, band: null, gaps: null, flags: BAND_CLIP_FILL };
      const stroke = _paths.stroke;
      let hasGap = false;
      const decimate = idx1 - idx0 >= xDim * 4;
      if (decimate) {
        let xForPixel = (pos) => u5.posToVal(pos, scaleX.key, true);
        let minY = null, maxY = null, inY, outY, drawnAtX;
        let accX = pixelForX(dataX[dir == 1 ? idx0 : idx1]);
        let idx0px = pixelForX(dataX[idx0]);
        let idx1px = pixelForX(dataX[idx1]);
        let nextAccXVal = xForPixel(dir == 1 ? idx0px + 1 : idx1px - 1);
        for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
          let xVal = dataX[i4];
          let reuseAccX = dir == 1 ? xVal < nextAccXVal : xVal > nextAccXVal;
          let x3 = reuseAccX ? accX : pixelForX(xVal);
          let yVal = dataY[i4];
          if (x3 == accX) {
            if (yVal != null) {
              outY = yVal;
              if (minY == null) {
                lineTo(stroke, x3, pixelForY(outY));
                inY = minY = maxY = outY;
              } else {
                if (outY < minY)
                  minY = outY;
                else if (outY > maxY)
                  maxY = outY;
              }
            } else {
              if (yVal === null)
                hasGap = true;
            }
          } else {
            if (minY != null)
              drawAcc(stroke, accX, pixelForY(minY), pixelForY(maxY), pixelForY(inY), pixelForY(outY));
            if (yVal != null) {
              outY = yVal;
              lineTo(stroke, x3, pixelForY(outY));
              minY = maxY = inY = outY;
            } else {
              minY = maxY = null;
              if (yVal === null)
                hasGap = true;
            }
            accX = x3;
            nextAccXVal = xForPixel(accX + dir);
          }
        }
        if (minY != null && minY != maxY && drawnAtX != accX)
          drawAcc(stroke, accX, pixelForY(minY), pixelForY(maxY), pixelForY(inY), pixelForY(outY));
      } else {
        for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
          let yVal = dataY[i4];
          if (yVal === null)
            hasGap = true;
          else if (yVal != null)
            lineTo(stroke, pixelForX(dataX[i4]), pixelForY(yVal));
        }
      }
      let [bandFillDir, bandClipDir] = bandFillClipDirs(u5, seriesIdx);
      if (series.fill != null || bandFillDir != 0) {
        let fill2 = _paths.fill = new Path2D(stroke);
        let fillToVal = series.fillTo(u5, seriesIdx, series.min, series.max, bandFillDir);
        let fillToY = pixelForY(fillToVal);
        let frX = pixelForX(dataX[idx0]);
        let toX = pixelForX(dataX[idx1]);
        if (dir == -1)
          [toX, frX] = [frX, toX];
        lineTo(fill2, toX, fillToY);
        lineTo(fill2, frX, fillToY);
      }
      if (!series.spanGaps) {
        let gaps2 = [];
        hasGap && gaps2.push(...findGaps(dataX, dataY, idx0, idx1, dir, pixelForX, alignGaps));
        _paths.gaps = gaps2 = series.gaps(u5, seriesIdx, idx0, idx1, gaps2);
        _paths.clip = clipGaps(gaps2, scaleX.ori, xOff, yOff, xDim, yDim);
      }
      if (bandClipDir != 0) {
        _paths.band = bandClipDir == 2 ? [
          clipBandLine(u5, seriesIdx, idx0, idx1, stroke, -1),
          clipBandLine(u5, seriesIdx, idx0, idx1, stroke, 1)
        ] : clipBandLine(u5, seriesIdx, idx0, idx1, stroke, bandClipDir);
      }
      return _paths;
    });
  };
}
function stepped(opts) {
  const align = ifNull(opts.align, 1);
  const ascDesc = ifNull(opts.ascDesc, false);
  const alignGaps = ifNull(opts.alignGaps, 0);
  const extend = ifNull(opts.extend, false);
  return (u5, seriesIdx, idx0, idx1) => {
    return orient(u5, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      [idx0, idx1] = nonNullIdxs(dataY, idx0, idx1);
      let pxRound = series.pxRound;
      let { left, width } = u5.bbox;
      let pixelForX = (val) => pxRound(valToPosX(val, scaleX, xDim, xOff));
      let pixelForY = (val) => pxRound(valToPosY(val, scaleY, yDim, yOff));
      let lineTo = scaleX.ori == 0 ? lineToH : lineToV;
      const _paths = { stroke: new Path2D(), fill: null, clip: null, band: null, gaps: null, flags: BAND_CLIP_FILL };
      const stroke = _paths.stroke;
      const dir = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
      let prevYPos = pixelForY(dataY[dir == 1 ? idx0 : idx1]);
      let firstXPos = pixelForX(dataX[dir == 1 ? idx0 : idx1]);
      let prevXPos = firstXPos;
      let firstXPosExt = firstXPos;
      if (extend && align == -1) {
        firstXPosExt = left;
        lineTo(stroke, firstXPosExt, prevYPos);
      }
      lineTo(stroke, firstXPos, prevYPos);
      for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
        let yVal1 = dataY[i4];
        if (yVal1 == null)
          continue;
        let x1 = pixelForX(dataX[i4]);
        let y1 = pixelForY(yVal1);
        if (align == 1)
          lineTo(stroke, x1, prevYPos);
        else
          lineTo(stroke, prevXPos, y1);
        lineTo(stroke, x1, y1);
        prevYPos = y1;
        prevXPos = x1;
      }
      let prevXPosExt = prevXPos;
      if (extend && align == 1) {
        prevXPosExt = left + width;
        lineTo(stroke, prevXPosExt, prevYPos);
      }
      let [bandFillDir, bandClipDir] = bandFillClipDirs(u5, seriesIdx);
      if (series.fill != null || bandFillDir != 0) {
        let fill2 = _paths.fill = new Path2D(stroke);
        let fillTo = series.fillTo(u5, seriesIdx, series.min, series.max, bandFillDir);
        let fillToY = pixelForY(fillTo);
        lineTo(fill2, prevXPosExt, fillToY);
        lineTo(fill2, firstXPosExt, fillToY);
      }
      if (!series.spanGaps) {
        let gaps2 = [];
        gaps2.push(...findGaps(dataX, dataY, idx0, idx1, dir, pixelForX, alignGaps));
        let halfStroke = series.width * pxRatio / 2;
        let startsOffset = ascDesc || align == 1 ? halfStroke : -halfStroke;
        let endsOffset = ascDesc || align == -1 ? -halfStroke : halfStroke;
        gaps2.forEach((g4) => {
          g4[0] += startsOffset;
          g4[1] += endsOffset;
        });
        _paths.gaps = gaps2 = series.gaps(u5, seriesIdx, idx0, idx1, gaps2);
        _paths.clip = clipGaps(gaps2, scaleX.ori, xOff, yOff, xDim, yDim);
      }
      if (bandClipDir != 0) {
        _paths.band = bandClipDir == 2 ? [
          clipBandLine(u5, seriesIdx, idx0, idx1, stroke, -1),
          clipBandLine(u5, seriesIdx, idx0, idx1, stroke, 1)
        ] : clipBandLine(u5, seriesIdx, idx0, idx1, stroke, bandClipDir);
      }
      return _paths;
    });
  };
}
function findColWidth(dataX, dataY, valToPosX, scaleX, xDim, xOff, colWid = inf) {
  if (dataX.length > 1) {
    let prevIdx = null;
    for (let i4 = 0, minDelta = Infinity; i4 < dataX.length; i4++) {
      if (dataY[i4] !== void 0) {
        if (prevIdx != null) {
          let delta = abs(dataX[i4] - dataX[prevIdx]);
          if (delta < minDelta) {
            minDelta = delta;
            colWid = abs(valToPosX(dataX[i4], scaleX, xDim, xOff) - valToPosX(dataX[prevIdx], scaleX, xDim, xOff));
          }
        }
        prevIdx = i4;
      }
    }
  }
  return colWid;
}
function bars(opts) {
  opts = opts || EMPTY_OBJ;
  const size = ifNull(opts.size, [0.6, inf, 1]);
  const align = opts.align || 0;
  const _extraGap = opts.gap || 0;
  let ro = opts.radius;
  ro = // [valueRadius, baselineRadius]
  ro == null ? [0, 0] : typeof ro == "number" ? [ro, 0] : ro;
  const radiusFn = fnOrSelf(ro);
  const gapFactor = 1 - size[0];
  const _maxWidth = ifNull(size[1], inf);
  const _minWidth = ifNull(size[2], 1);
  const disp = ifNull(opts.disp, EMPTY_OBJ);
  const _each = ifNull(opts.each, (_6) => {
  });
  const { fill: dispFills, stroke: dispStrokes } = disp;
  return (u5, seriesIdx, idx0, idx1) => {
    return orient(u5, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      let pxRound = series.pxRound;
      let _align = align;
      let extraGap = _extraGap * pxRatio;
      let maxWidth = _maxWidth * pxRatio;
      let minWidth = _minWidth * pxRatio;
      let valRadius, baseRadius;
      if (scaleX.ori == 0)
        [valRadius, baseRadius] = radiusFn(u5, seriesIdx);
      else
        [baseRadius, valRadius] = radiusFn(u5, seriesIdx);
      const _dirX = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
      let rect2 = scaleX.ori == 0 ? rectH : rectV;
      let each = scaleX.ori == 0 ? _each : (u6, seriesIdx2, i4, top, lft, hgt, wid) => {
        _each(u6, seriesIdx2, i4, lft, top, wid, hgt);
      };
      let band = ifNull(u5.bands, EMPTY_ARR).find((b4) => b4.series[0] == seriesIdx);
      let fillDir = band != null ? band.dir : 0;
      let fillTo = series.fillTo(u5, seriesIdx, series.min, series.max, fillDir);
      let fillToY = pxRound(valToPosY(fillTo, scaleY, yDim, yOff));
      let xShift, barWid, fullGap, colWid = xDim;
      let strokeWidth = pxRound(series.width * pxRatio);
      let multiPath = false;
      let fillColors = null;
      let fillPaths = null;
      let strokeColors = null;
      let strokePaths = null;
      if (dispFills != null && (strokeWidth == 0 || dispStrokes != null)) {
        multiPath = true;
        fillColors = dispFills.values(u5, seriesIdx, idx0, idx1);
        fillPaths = /* @__PURE__ */ new Map();
        new Set(fillColors).forEach((color) => {
          if (color != null)
            fillPaths.set(color, new Path2D());
        });
        if (strokeWidth > 0) {
          strokeColors = dispStrokes.values(u5, seriesIdx, idx0, idx1);
          strokePaths = /* @__PURE__ */ new Map();
          new Set(strokeColors).forEach((color) => {
            if (color != null)
              strokePaths.set(color, new Path2D());
          });
        }
      }
      let { x0, size: size2 } = disp;
      if (x0 != null && size2 != null) {
        _align = 1;
        dataX = x0.values(u5, seriesIdx, idx0, idx1);
        if (x0.unit == 2)
          dataX = dataX.map((pct) => u5.posToVal(xOff + pct * xDim, scaleX.key, true));
        let sizes = size2.values(u5, seriesIdx, idx0, idx1);
        if (size2.unit == 2)
          barWid = sizes[0] * xDim;
        else
          barWid = valToPosX(sizes[0], scaleX, xDim, xOff) - valToPosX(0, scaleX, xDim, xOff);
        colWid = findColWidth(dataX, dataY, valToPosX, scaleX, xDim, xOff, colWid);
        let gapWid = colWid - barWid;
        fullGap = gapWid + extraGap;
      } else {
        colWid = findColWidth(dataX, dataY, valToPosX, scaleX, xDim, xOff, colWid);
        let gapWid = colWid * gapFactor;
        fullGap = gapWid + extraGap;
        barWid = colWid - fullGap;
      }
      if (fullGap < 1)
        fullGap = 0;
      if (strokeWidth >= barWid / 2)
        strokeWidth = 0;
      if (fullGap < 5)
        pxRound = retArg0;
      let insetStroke = fullGap > 0;
      let rawBarWid = colWid - fullGap - (insetStroke ? strokeWidth : 0);
      barWid = pxRound(clamp(rawBarWid, minWidth, maxWidth));
      xShift = (_align == 0 ? barWid / 2 : _align == _dirX ? 0 : barWid) - _align * _dirX * ((_align == 0 ? extraGap / 2 : 0) + (insetStroke ? strokeWidth / 2 : 0));
      const _paths = { stroke: null, fill: null, clip: null, band: null, gaps: null, flags: 0 };
      const stroke = multiPath ? null : new Path2D();
      let dataY0 = null;
      if (band != null)
        dataY0 = u5.data[band.series[1]];
      else {
        let { y0, y1 } = disp;
        if (y0 != null && y1 != null) {
          dataY = y1.values(u5, seriesIdx, idx0, idx1);
          dataY0 = y0.values(u5, seriesIdx, idx0, idx1);
        }
      }
      let radVal = valRadius * barWid;
      let radBase = baseRadius * barWid;
      for (let i4 = _dirX == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += _dirX) {
        let yVal = dataY[i4];
        if (yVal == null)
          continue;
        if (dataY0 != null) {
          let yVal0 = dataY0[i4] ?? 0;
          if (yVal - yVal0 == 0)
            continue;
          fillToY = valToPosY(yVal0, scaleY, yDim, yOff);
        }
        let xVal = scaleX.distr != 2 || disp != null ? dataX[i4] : i4;
        let xPos = valToPosX(xVal, scaleX, xDim, xOff);
        let yPos = valToPosY(ifNull(yVal, fillTo), scaleY, yDim, yOff);
        let lft = pxRound(xPos - xShift);
        let btm = pxRound(max(yPos, fillToY));
        let top = pxRound(min(yPos, fillToY));
        let barHgt = btm - top;
        if (yVal != null) {
          let rv = yVal < 0 ? radBase : radVal;
          let rb = yVal < 0 ? radVal : radBase;
          if (multiPath) {
            if (strokeWidth > 0 && strokeColors[i4] != null)
              rect2(strokePaths.get(strokeColors[i4]), lft, top + floor(strokeWidth / 2), barWid, max(0, barHgt - strokeWidth), rv, rb);
            if (fillColors[i4] != null)
              rect2(fillPaths.get(fillColors[i4]), lft, top + floor(strokeWidth / 2), barWid, max(0, barHgt - strokeWidth), rv, rb);
          } else
            rect2(stroke, lft, top + floor(strokeWidth / 2), barWid, max(0, barHgt - strokeWidth), rv, rb);
          each(
            u5,
            seriesIdx,
            i4,
            lft - strokeWidth / 2,
            top,
            barWid + strokeWidth,
            barHgt
          );
        }
      }
      if (strokeWidth > 0)
        _paths.stroke = multiPath ? strokePaths : stroke;
      else if (!multiPath) {
        _paths._fill = series.width == 0 ? series._fill : series._stroke ?? series._fill;
        _paths.width = 0;
      }
      _paths.fill = multiPath ? fillPaths : stroke;
      return _paths;
    });
  };
}
function splineInterp(interp, opts) {
  const alignGaps = ifNull(opts?.alignGaps, 0);
  return (u5, seriesIdx, idx0, idx1) => {
    return orient(u5, seriesIdx, (series, dataX, dataY, scaleX, scaleY, valToPosX, valToPosY, xOff, yOff, xDim, yDim) => {
      [idx0, idx1] = nonNullIdxs(dataY, idx0, idx1);
      let pxRound = series.pxRound;
      let pixelForX = (val) => pxRound(valToPosX(val, scaleX, xDim, xOff));
      let pixelForY = (val) => pxRound(valToPosY(val, scaleY, yDim, yOff));
      let moveTo, bezierCurveTo, lineTo;
      if (scaleX.ori == 0) {
        moveTo = moveToH;
        lineTo = lineToH;
        bezierCurveTo = bezierCurveToH;
      } else {
        moveTo = moveToV;
        lineTo = lineToV;
        bezierCurveTo = bezierCurveToV;
      }
      const dir = scaleX.dir * (scaleX.ori == 0 ? 1 : -1);
      let firstXPos = pixelForX(dataX[dir == 1 ? idx0 : idx1]);
      let prevXPos = firstXPos;
      let xCoords = [];
      let yCoords = [];
      for (let i4 = dir == 1 ? idx0 : idx1; i4 >= idx0 && i4 <= idx1; i4 += dir) {
        let yVal = dataY[i4];
        if (yVal != null) {
          let xVal = dataX[i4];
          let xPos = pixelForX(xVal);
          xCoords.push(prevXPos = xPos);
          yCoords.push(pixelForY(dataY[i4]));
        }
      }
      const _paths = { stroke: interp(xCoords, yCoords, moveTo, lineTo, bezierCurveTo, pxRound), fill: null, clip: null, band: null, gaps: null, flags: BAND_CLIP_FILL };
      const stroke = _paths.stroke;
      let [bandFillDir, bandClipDir] = bandFillClipDirs(u5, seriesIdx);
      if (series.fill != null || bandFillDir != 0) {
        let fill2 = _paths.fill = new Path2D(stroke);
        let fillTo = series.fillTo(u5, seriesIdx, series.min, series.max, bandFillDir);
        let fillToY = pixelForY(fillTo);
        lineTo(fill2, prevXPos, fillToY);
        lineTo(fill2, firstXPos, fillToY);
      }
      if (!series.spanGaps) {
        let gaps2 = [];
        gaps2.push(...findGaps(dataX, dataY, idx0, idx1, dir, pixelForX, alignGaps));
        _paths.gaps = gaps2 = series.gaps(u5, seriesIdx, idx0, idx1, gaps2);
        _paths.clip = clipGaps(gaps2, scaleX.ori, xOff, yOff, xDim, yDim);
      }
      if (bandClipDir != 0) {
        _paths.band = bandClipDir == 2 ? [
          clipBandLine(u5, seriesIdx, idx0, idx1, stroke, -1),
          clipBandLine(u5, seriesIdx, idx0, idx1, stroke, 1)
        ] : clipBandLine(u5, seriesIdx, idx0, idx1, stroke, bandClipDir);
      }
      return _paths;
    });
  };
}
function monotoneCubic(opts) {
  return splineInterp(_monotoneCubic, opts);
}
function _monotoneCubic(xs, ys, moveTo, lineTo, bezierCurveTo, pxRound) {
  const n3 = xs.length;
  if (n3 < 2)
    return null;
  const path = new Path2D();
  moveTo(path, xs[0], ys[0]);
  if (n3 == 2)
    lineTo(path, xs[1], ys[1]);
  else {
    let ms = Array(n3), ds = Array(n3 - 1), dys = Array(n3 - 1), dxs = Array(n3 - 1);
    for (let i4 = 0; i4 < n3 - 1; i4++) {
      dys[i4] = ys[i4 + 1] - ys[i4];
      dxs[i4] = xs[i4 + 1] - xs[i4];
      ds[i4] = dys[i4] / dxs[i4];
    }
    ms[0] = ds[0];
    for (let i4 = 1; i4 < n3 - 1; i4++) {
      if (ds[i4] === 0 || ds[i4 - 1] === 0 || ds[i4 - 1] > 0 !== ds[i4] > 0)
        ms[i4] = 0;
      else {
        ms[i4] = 3 * (dxs[i4 - 1] + dxs[i4]) / ((2 * dxs[i4] + dxs[i4 - 1]) / ds[i4 - 1] + (dxs[i4] + 2 * dxs[i4 - 1]) / ds[i4]);
        if (!isFinite(ms[i4]))
          ms[i4] = 0;
      }
    }
    ms[n3 - 1] = ds[n3 - 2];
    for (let i4 = 0; i4 < n3 - 1; i4++) {
      bezierCurveTo(
        path,
        xs[i4] + dxs[i4] / 3,
        ys[i4] + ms[i4] * dxs[i4] / 3,
        xs[i4 + 1] - dxs[i4] / 3,
        ys[i4 + 1] - ms[i4 + 1] * dxs[i4] / 3,
        xs[i4 + 1],
        ys[i4 + 1]
      );
    }
  }
  return path;
}
var cursorPlots = /* @__PURE__ */ new Set();
function invalidateRects() {
  for (let u5 of cursorPlots)
    u5.syncRect(true);
}
if (domEnv) {
  on(resize, win, invalidateRects);
  on(scroll, win, invalidateRects, true);
  on(dppxchange, win, () => {
    uPlot.pxRatio = pxRatio;
  });
}
var linearPath = linear();
var pointsPath = points();
function setDefaults(d4, xo, yo, initY) {
  let d22 = initY ? [d4[0], d4[1]].concat(d4.slice(2)) : [d4[0]].concat(d4.slice(1));
  return d22.map((o4, i4) => setDefault(o4, i4, xo, yo));
}
function setDefaults2(d4, xyo) {
  return d4.map((o4, i4) => i4 == 0 ? {} : assign({}, xyo, o4));
}
function setDefault(o4, i4, xo, yo) {
  return assign({}, i4 == 0 ? xo : yo, o4);
}
function snapNumX(self, dataMin, dataMax) {
  return dataMin == null ? nullNullTuple : [dataMin, dataMax];
}
var snapTimeX = snapNumX;
function snapNumY(self, dataMin, dataMax) {
  return dataMin == null ? nullNullTuple : rangeNum(dataMin, dataMax, rangePad, true);
}
function snapLogY(self, dataMin, dataMax, scale) {
  return dataMin == null ? nullNullTuple : rangeLog(dataMin, dataMax, self.scales[scale].log, false);
}
var snapLogX = snapLogY;
function snapAsinhY(self, dataMin, dataMax, scale) {
  return dataMin == null ? nullNullTuple : rangeAsinh(dataMin, dataMax, self.scales[scale].log, false);
}
var snapAsinhX = snapAsinhY;
function findIncr(minVal, maxVal, incrs, dim, minSpace) {
  let intDigits = max(numIntDigits(minVal), numIntDigits(maxVal));
  let delta = maxVal - minVal;
  let incrIdx = closestIdx(minSpace / dim * delta, incrs);
  do {
    let foundIncr = incrs[incrIdx];
    let foundSpace = dim * foundIncr / delta;
    if (foundSpace >= minSpace && intDigits + (foundIncr < 5 ? fixedDec.get(foundIncr) : 0) <= 17)
      return [foundIncr, foundSpace];
  } while (++incrIdx < incrs.length);
  return [0, 0];
}
function pxRatioFont(font2) {
  let fontSize, fontSizeCss;
  font2 = font2.replace(/(\d+)px/, (m5, p1) => (fontSize = round((fontSizeCss = +p1) * pxRatio)) + "px");
  return [font2, fontSize, fontSizeCss];
}
function syncFontSize(axis) {
  if (axis.show) {
    [axis.font, axis.labelFont].forEach((f5) => {
      let size = roundDec(f5[2] * pxRatio, 1);
      f5[0] = f5[0].replace(/[0-9.]+px/, size + "px");
      f5[1] = size;
    });
  }
}
function uPlot(opts, data, then) {
  const self = {
    mode: ifNull(opts.mode, 1)
  };
  const mode = self.mode;
  function getHPos(val, scale, dim, off2) {
    let pct = scale.valToPct(val);
    return off2 + dim * (scale.dir == -1 ? 1 - pct : pct);
  }
  function getVPos(val, scale, dim, off2) {
    let pct = scale.valToPct(val);
    return off2 + dim * (scale.dir == -1 ? pct : 1 - pct);
  }
  function getPos(val, scale, dim, off2) {
    return scale.ori == 0 ? getHPos(val, scale, dim, off2) : getVPos(val, scale, dim, off2);
  }
  self.valToPosH = getHPos;
  self.valToPosV = getVPos;
  let ready = false;
  self.status = 0;
  const root = self.root = placeDiv(UPLOT);
  if (opts.id != null)
    root.id = opts.id;
  addClass(root, opts.class);
  if (opts.title) {
    let title = placeDiv(TITLE, root);
    title.textContent = opts.title;
  }
  const can = placeTag("canvas");
  const ctx = self.ctx = can.getContext("2d");
  const wrap = placeDiv(WRAP, root);
  on("click", wrap, (e4) => {
    if (e4.target === over) {
      let didDrag = mouseLeft1 != mouseLeft0 || mouseTop1 != mouseTop0;
      didDrag && drag.click(self, e4);
    }
  }, true);
  const under = self.under = placeDiv(UNDER, wrap);
  wrap.appendChild(can);
  const over = self.over = placeDiv(OVER, wrap);
  opts = copy(opts);
  const pxAlign = +ifNull(opts.pxAlign, 1);
  const pxRound = pxRoundGen(pxAlign);
  (opts.plugins || []).forEach((p5) => {
    if (p5.opts)
      opts = p5.opts(self, opts) || opts;
  });
  const ms = opts.ms || 1e-3;
  const series = self.series = mode == 1 ? setDefaults(opts.series || [], xSeriesOpts, ySeriesOpts, false) : setDefaults2(opts.series || [null], xySeriesOpts);
  const axes = self.axes = setDefaults(opts.axes || [], xAxisOpts, yAxisOpts, true);
  const scales = self.scales = {};
  const bands = self.bands = opts.bands || [];
  bands.forEach((b4) => {
    b4.fill = fnOrSelf(b4.fill || null);
    b4.dir = ifNull(b4.dir, -1);
  });
  const xScaleKey = mode == 2 ? series[1].facets[0].scale : series[0].scale;
  const drawOrderMap = {
    axes: drawAxesGrid,
    series: drawSeries
  };
  const drawOrder = (opts.drawOrder || ["axes", "series"]).map((key2) => drawOrderMap[key2]);
  function initValToPct(sc) {
    const getVal = sc.distr == 3 ? (val) => log10(val > 0 ? val : sc.clamp(self, val, sc.min, sc.max, sc.key)) : sc.distr == 4 ? (val) => asinh(val, sc.asinh) : sc.distr == 100 ? (val) => sc.fwd(val) : (val) => val;
    return (val) => {
      let _val = getVal(val);
      let { _min, _max } = sc;
      let delta = _max - _min;
      return (_val - _min) / delta;
    };
  }
  function initScale(scaleKey) {
    let sc = scales[scaleKey];
    if (sc == null) {
      let scaleOpts = (opts.scales || EMPTY_OBJ)[scaleKey] || EMPTY_OBJ;
      if (scaleOpts.from != null) {
        initScale(scaleOpts.from);
        let sc2 = assign({}, scales[scaleOpts.from], scaleOpts, { key: scaleKey });
        sc2.valToPct = initValToPct(sc2);
        scales[scaleKey] = sc2;
      } else {
        sc = scales[scaleKey] = assign({}, scaleKey == xScaleKey ? xScaleOpts : yScaleOpts, scaleOpts);
        sc.key = scaleKey;
        let isTime = sc.time;
        let rn = sc.range;
        let rangeIsArr = isArr(rn);
        if (scaleKey != xScaleKey || mode == 2 && !isTime) {
          if (rangeIsArr && (rn[0] == null || rn[1] == null)) {
            rn = {
              min: rn[0] == null ? autoRangePart : {
                mode: 1,
                hard: rn[0],
                soft: rn[0]
              },
              max: rn[1] == null ? autoRangePart : {
                mode: 1,
                hard: rn[1],
                soft: rn[1]
              }
            };
            rangeIsArr = false;
          }
          if (!rangeIsArr && isObj(rn)) {
            let cfg = rn;
            rn = (self2, dataMin, dataMax) => dataMin == null ? nullNullTuple : rangeNum(dataMin, dataMax, cfg);
          }
        }
        sc.range = fnOrSelf(rn || (isTime ? snapTimeX : scaleKey == xScaleKey ? sc.distr == 3 ? snapLogX : sc.distr == 4 ? snapAsinhX : snapNumX : sc.distr == 3 ? snapLogY : sc.distr == 4 ? snapAsinhY : snapNumY));
        sc.auto = fnOrSelf(rangeIsArr ? false : sc.auto);
        sc.clamp = fnOrSelf(sc.clamp || clampScale);
        sc._min = sc._max = null;
        sc.valToPct = initValToPct(sc);
      }
    }
  }
  initScale("x");
  initScale("y");
  if (mode == 1) {
    series.forEach((s4) => {
      initScale(s4.scale);
    });
  }
  axes.forEach((a4) => {
    initScale(a4.scale);
  });
  for (let k4 in opts.scales)
    initScale(k4);
  const scaleX = scales[xScaleKey];
  const xScaleDistr = scaleX.distr;
  let valToPosX, valToPosY;
  if (scaleX.ori == 0) {
    addClass(root, ORI_HZ);
    valToPosX = getHPos;
    valToPosY = getVPos;
  } else {
    addClass(root, ORI_VT);
    valToPosX = getVPos;
    valToPosY = getHPos;
  }
  const pendScales = {};
  for (let k4 in scales) {
    let sc = scales[k4];
    if (sc.min != null || sc.max != null) {
      pendScales[k4] = { min: sc.min, max: sc.max };
      sc.min = sc.max = null;
    }
  }
  const _tzDate = opts.tzDate || ((ts) => new Date(round(ts / ms)));
  const _fmtDate = opts.fmtDate || fmtDate;
  const _timeAxisSplits = ms == 1 ? timeAxisSplitsMs(_tzDate) : timeAxisSplitsS(_tzDate);
  const _timeAxisVals = timeAxisVals(_tzDate, timeAxisStamps(ms == 1 ? _timeAxisStampsMs : _timeAxisStampsS, _fmtDate));
  const _timeSeriesVal = timeSeriesVal(_tzDate, timeSeriesStamp(_timeSeriesStamp, _fmtDate));
  const activeIdxs = [];
  const legend = self.legend = assign({}, legendOpts, opts.legend);
  const cursor = self.cursor = assign({}, cursorOpts, { drag: { y: mode == 2 } }, opts.cursor);
  const showLegend = legend.show;
  const showCursor = cursor.show;
  const markers = legend.markers;
  {
    legend.idxs = activeIdxs;
    markers.width = fnOrSelf(markers.width);
    markers.dash = fnOrSelf(markers.dash);
    markers.stroke = fnOrSelf(markers.stroke);
    markers.fill = fnOrSelf(markers.fill);
  }
  let legendTable;
  let legendHead;
  let legendBody;
  let legendRows = [];
  let legendCells = [];
  let legendCols;
  let multiValLegend = false;
  let NULL_LEGEND_VALUES = {};
  if (legend.live) {
    const getMultiVals = series[1] ? series[1].values : null;
    multiValLegend = getMultiVals != null;
    legendCols = multiValLegend ? getMultiVals(self, 1, 0) : { _: 0 };
    for (let k4 in legendCols)
      NULL_LEGEND_VALUES[k4] = LEGEND_DISP;
  }
  if (showLegend) {
    legendTable = placeTag("table", LEGEND, root);
    legendBody = placeTag("tbody", null, legendTable);
    legend.mount(self, legendTable);
    if (multiValLegend) {
      legendHead = placeTag("thead", null, legendTable, legendBody);
      let head = placeTag("tr", null, legendHead);
      placeTag("th", null, head);
      for (var key in legendCols)
        placeTag("th", LEGEND_LABEL, head).textContent = key;
    } else {
      addClass(legendTable, LEGEND_INLINE);
      legend.live && addClass(legendTable, LEGEND_LIVE);
    }
  }
  const son = { show: true };
  const soff = { show: false };
  function initLegendRow(s4, i4) {
    if (i4 == 0 && (multiValLegend || !legend.live || mode == 2))
      return nullNullTuple;
    let cells = [];
    let row = placeTag("tr", LEGEND_SERIES, legendBody, legendBody.childNodes[i4]);
    addClass(row, s4.class);
    if (!s4.show)
      addClass(row, OFF);
    let label = placeTag("th", null, row);
    if (markers.show) {
      let indic = placeDiv(LEGEND_MARKER, label);
      if (i4 > 0) {
        let width = markers.width(self, i4);
        if (width)
          indic.style.border = width + "px " + markers.dash(self, i4) + " " + markers.stroke(self, i4);
        indic.style.background = markers.fill(self, i4);
      }
    }
    let text = placeDiv(LEGEND_LABEL, label);
    if (s4.label instanceof HTMLElement)
      text.appendChild(s4.label);
    else
      text.textContent = s4.label;
    if (i4 > 0) {
      if (!markers.show)
        text.style.color = s4.width > 0 ? markers.stroke(self, i4) : markers.fill(self, i4);
      onMouse("click", label, (e4) => {
        if (cursor._lock)
          return;
        setCursorEvent(e4);
        let seriesIdx = series.indexOf(s4);
        if ((e4.ctrlKey || e4.metaKey) != legend.isolate) {
          let isolate = series.some((s5, i5) => i5 > 0 && i5 != seriesIdx && s5.show);
          series.forEach((s5, i5) => {
            i5 > 0 && setSeries(i5, isolate ? i5 == seriesIdx ? son : soff : son, true, syncOpts.setSeries);
          });
        } else
          setSeries(seriesIdx, { show: !s4.show }, true, syncOpts.setSeries);
      }, false);
      if (cursorFocus) {
        onMouse(mouseenter, label, (e4) => {
          if (cursor._lock)
            return;
          setCursorEvent(e4);
          setSeries(series.indexOf(s4), FOCUS_TRUE, true, syncOpts.setSeries);
        }, false);
      }
    }
    for (var key2 in legendCols) {
      let v4 = placeTag("td", LEGEND_VALUE, row);
      v4.textContent = "--";
      cells.push(v4);
    }
    return [row, cells];
  }
  const mouseListeners = /* @__PURE__ */ new Map();
  function onMouse(ev, targ, fn, onlyTarg = true) {
    const targListeners = mouseListeners.get(targ) || {};
    const listener = cursor.bind[ev](self, targ, fn, onlyTarg);
    if (listener) {
      on(ev, targ, targListeners[ev] = listener);
      mouseListeners.set(targ, targListeners);
    }
  }
  function offMouse(ev, targ, fn) {
    const targListeners = mouseListeners.get(targ) || {};
    for (let k4 in targListeners) {
      if (ev == null || k4 == ev) {
        off(k4, targ, targListeners[k4]);
        delete targListeners[k4];
      }
    }
    if (ev == null)
      mouseListeners.delete(targ);
  }
  let fullWidCss = 0;
  let fullHgtCss = 0;
  let plotWidCss = 0;
  let plotHgtCss = 0;
  let plotLftCss = 0;
  let plotTopCss = 0;
  let _plotLftCss = plotLftCss;
  let _plotTopCss = plotTopCss;
  let _plotWidCss = plotWidCss;
  let _plotHgtCss = plotHgtCss;
  let plotLft = 0;
  let plotTop = 0;
  let plotWid = 0;
  let plotHgt = 0;
  self.bbox = {};
  let shouldSetScales = false;
  let shouldSetSize = false;
  let shouldConvergeSize = false;
  let shouldSetCursor = false;
  let shouldSetSelect = false;
  let shouldSetLegend = false;
  function _setSize(width, height, force) {
    if (force || (width != self.width || height != self.height))
      calcSize(width, height);
    resetYSeries(false);
    shouldConvergeSize = true;
    shouldSetSize = true;
    commit();
  }
  function calcSize(width, height) {
    self.width = fullWidCss = plotWidCss = width;
    self.height = fullHgtCss = plotHgtCss = height;
    plotLftCss = plotTopCss = 0;
    calcPlotRect();
    calcAxesRects();
    let bb = self.bbox;
    plotLft = bb.left = incrRound(plotLftCss * pxRatio, 0.5);
    plotTop = bb.top = incrRound(plotTopCss * pxRatio, 0.5);
    plotWid = bb.width = incrRound(plotWidCss * pxRatio, 0.5);
    plotHgt = bb.height = incrRound(plotHgtCss * pxRatio, 0.5);
  }
  const CYCLE_LIMIT = 3;
  function convergeSize() {
    let converged = false;
    let cycleNum = 0;
    while (!converged) {
      cycleNum++;
      let axesConverged = axesCalc(cycleNum);
      let paddingConverged = paddingCalc(cycleNum);
      converged = cycleNum == CYCLE_LIMIT || axesConverged && paddingConverged;
      if (!converged) {
        calcSize(self.width, self.height);
        shouldSetSize = true;
      }
    }
  }
  function setSize({ width, height }) {
    _setSize(width, height);
  }
  self.setSize = setSize;
  function calcPlotRect() {
    let hasTopAxis = false;
    let hasBtmAxis = false;
    let hasRgtAxis = false;
    let hasLftAxis = false;
    axes.forEach((axis, i4) => {
      if (axis.show && axis._show) {
        let { side, _size } = axis;
        let isVt = side % 2;
        let labelSize = axis.label != null ? axis.labelSize : 0;
        let fullSize = _size + labelSize;
        if (fullSize > 0) {
          if (isVt) {
            plotWidCss -= fullSize;
            if (side == 3) {
              plotLftCss += fullSize;
              hasLftAxis = true;
            } else
              hasRgtAxis = true;
          } else {
            plotHgtCss -= fullSize;
            if (side == 0) {
              plotTopCss += fullSize;
              hasTopAxis = true;
            } else
              hasBtmAxis = true;
          }
        }
      }
    });
    sidesWithAxes[0] = hasTopAxis;
    sidesWithAxes[1] = hasRgtAxis;
    sidesWithAxes[2] = hasBtmAxis;
    sidesWithAxes[3] = hasLftAxis;
    plotWidCss -= _padding[1] + _padding[3];
    plotLftCss += _padding[3];
    plotHgtCss -= _padding[2] + _padding[0];
    plotTopCss += _padding[0];
  }
  function calcAxesRects() {
    let off1 = plotLftCss + plotWidCss;
    let off2 = plotTopCss + plotHgtCss;
    let off3 = plotLftCss;
    let off0 = plotTopCss;
    function incrOffset(side, size) {
      switch (side) {
        case 1:
          off1 += size;
          return off1 - size;
        case 2:
          off2 += size;
          return off2 - size;
        case 3:
          off3 -= size;
          return off3 + size;
        case 0:
          off0 -= size;
          return off0 + size;
      }
    }
    axes.forEach((axis, i4) => {
      if (axis.show && axis._show) {
        let side = axis.side;
        axis._pos = incrOffset(side, axis._size);
        if (axis.label != null)
          axis._lpos = incrOffset(side, axis.labelSize);
      }
    });
  }
  if (cursor.dataIdx == null) {
    let hov = cursor.hover;
    let skip = hov.skip = new Set(hov.skip ?? []);
    skip.add(void 0);
    let prox = hov.prox = fnOrSelf(hov.prox);
    let bias = hov.bias ??= 0;
    cursor.dataIdx = (self2, seriesIdx, cursorIdx, valAtPosX) => {
      if (seriesIdx == 0)
        return cursorIdx;
      let idx2 = cursorIdx;
      let _prox = prox(self2, seriesIdx, cursorIdx, valAtPosX) ?? inf;
      let withProx = _prox >= 0 && _prox < inf;
      let xDim = scaleX.ori == 0 ? plotWidCss : plotHgtCss;
      let cursorLft = cursor.left;
      let xValues = data[0];
      let yValues = data[seriesIdx];
      if (skip.has(yValues[cursorIdx])) {
        idx2 = null;
        let nonNullLft = null, nonNullRgt = null, j4;
        if (bias == 0 || bias == -1) {
          j4 = cursorIdx;
          while (nonNullLft == null && j4-- > 0) {
            if (!skip.has(yValues[j4]))
              nonNullLft = j4;
          }
        }
        if (bias == 0 || bias == 1) {
          j4 = cursorIdx;
          while (nonNullRgt == null && j4++ < yValues.length) {
            if (!skip.has(yValues[j4]))
              nonNullRgt = j4;
          }
        }
        if (nonNullLft != null || nonNullRgt != null) {
          if (withProx) {
            let lftPos = nonNullLft == null ? -Infinity : valToPosX(xValues[nonNullLft], scaleX, xDim, 0);
            let rgtPos = nonNullRgt == null ? Infinity : valToPosX(xValues[nonNullRgt], scaleX, xDim, 0);
            let lftDelta = cursorLft - lftPos;
            let rgtDelta = rgtPos - cursorLft;
            if (lftDelta <= rgtDelta) {
              if (lftDelta <= _prox)
                idx2 = nonNullLft;
            } else {
              if (rgtDelta <= _prox)
                idx2 = nonNullRgt;
            }
          } else {
            idx2 = nonNullRgt == null ? nonNullLft : nonNullLft == null ? nonNullRgt : cursorIdx - nonNullLft <= nonNullRgt - cursorIdx ? nonNullLft : nonNullRgt;
          }
        }
      } else if (withProx) {
        let dist = abs(cursorLft - valToPosX(xValues[cursorIdx], scaleX, xDim, 0));
        if (dist > _prox)
          idx2 = null;
      }
      return idx2;
    };
  }
  const setCursorEvent = (e4) => {
    cursor.event = e4;
  };
  cursor.idxs = activeIdxs;
  cursor._lock = false;
  let points2 = cursor.points;
  points2.show = fnOrSelf(points2.show);
  points2.size = fnOrSelf(points2.size);
  points2.stroke = fnOrSelf(points2.stroke);
  points2.width = fnOrSelf(points2.width);
  points2.fill = fnOrSelf(points2.fill);
  const focus = self.focus = assign({}, opts.focus || { alpha: 0.3 }, cursor.focus);
  const cursorFocus = focus.prox >= 0;
  const cursorOnePt = cursorFocus && points2.one;
  let cursorPts = [];
  let cursorPtsLft = [];
  let cursorPtsTop = [];
  function initCursorPt(s4, si) {
    let pt = points2.show(self, si);
    if (pt instanceof HTMLElement) {
      addClass(pt, CURSOR_PT);
      addClass(pt, s4.class);
      elTrans(pt, -10, -10, plotWidCss, plotHgtCss);
      over.insertBefore(pt, cursorPts[si]);
      return pt;
    }
  }
  function initSeries(s4, i4) {
    if (mode == 1 || i4 > 0) {
      let isTime = mode == 1 && scales[s4.scale].time;
      let sv = s4.value;
      s4.value = isTime ? isStr(sv) ? timeSeriesVal(_tzDate, timeSeriesStamp(sv, _fmtDate)) : sv || _timeSeriesVal : sv || numSeriesVal;
      s4.label = s4.label || (isTime ? timeSeriesLabel : numSeriesLabel);
    }
    if (cursorOnePt || i4 > 0) {
      s4.width = s4.width == null ? 1 : s4.width;
      s4.paths = s4.paths || linearPath || retNull;
      s4.fillTo = fnOrSelf(s4.fillTo || seriesFillTo);
      s4.pxAlign = +ifNull(s4.pxAlign, pxAlign);
      s4.pxRound = pxRoundGen(s4.pxAlign);
      s4.stroke = fnOrSelf(s4.stroke || null);
      s4.fill = fnOrSelf(s4.fill || null);
      s4._stroke = s4._fill = s4._paths = s4._focus = null;
      let _ptDia = ptDia(max(1, s4.width), 1);
      let points3 = s4.points = assign({}, {
        size: _ptDia,
        width: max(1, _ptDia * 0.2),
        stroke: s4.stroke,
        space: _ptDia * 2,
        paths: pointsPath,
        _stroke: null,
        _fill: null
      }, s4.points);
      points3.show = fnOrSelf(points3.show);
      points3.filter = fnOrSelf(points3.filter);
      points3.fill = fnOrSelf(points3.fill);
      points3.stroke = fnOrSelf(points3.stroke);
      points3.paths = fnOrSelf(points3.paths);
      points3.pxAlign = s4.pxAlign;
    }
    if (showLegend) {
      let rowCells = initLegendRow(s4, i4);
      legendRows.splice(i4, 0, rowCells[0]);
      legendCells.splice(i4, 0, rowCells[1]);
      legend.values.push(null);
    }
    if (showCursor) {
      activeIdxs.splice(i4, 0, null);
      let pt = null;
      if (cursorOnePt) {
        if (i4 == 0)
          pt = initCursorPt(s4, i4);
      } else if (i4 > 0)
        pt = initCursorPt(s4, i4);
      cursorPts.splice(i4, 0, pt);
      cursorPtsLft.splice(i4, 0, 0);
      cursorPtsTop.splice(i4, 0, 0);
    }
    fire("addSeries", i4);
  }
  function addSeries(opts2, si) {
    si = si == null ? series.length : si;
    opts2 = mode == 1 ? setDefault(opts2, si, xSeriesOpts, ySeriesOpts) : setDefault(opts2, si, {}, xySeriesOpts);
    series.splice(si, 0, opts2);
    initSeries(series[si], si);
  }
  self.addSeries = addSeries;
  function delSeries(i4) {
    series.splice(i4, 1);
    if (showLegend) {
      legend.values.splice(i4, 1);
      legendCells.splice(i4, 1);
      let tr = legendRows.splice(i4, 1)[0];
      offMouse(null, tr.firstChild);
      tr.remove();
    }
    if (showCursor) {
      activeIdxs.splice(i4, 1);
      cursorPts.splice(i4, 1)[0].remove();
      cursorPtsLft.splice(i4, 1);
      cursorPtsTop.splice(i4, 1);
    }
    fire("delSeries", i4);
  }
  self.delSeries = delSeries;
  const sidesWithAxes = [false, false, false, false];
  function initAxis(axis, i4) {
    axis._show = axis.show;
    if (axis.show) {
      let isVt = axis.side % 2;
      let sc = scales[axis.scale];
      if (sc == null) {
        axis.scale = isVt ? series[1].scale : xScaleKey;
        sc = scales[axis.scale];
      }
      let isTime = sc.time;
      axis.size = fnOrSelf(axis.size);
      axis.space = fnOrSelf(axis.space);
      axis.rotate = fnOrSelf(axis.rotate);
      if (isArr(axis.incrs)) {
        axis.incrs.forEach((incr) => {
          !fixedDec.has(incr) && fixedDec.set(incr, guessDec(incr));
        });
      }
      axis.incrs = fnOrSelf(axis.incrs || (sc.distr == 2 ? wholeIncrs : isTime ? ms == 1 ? timeIncrsMs : timeIncrsS : numIncrs));
      axis.splits = fnOrSelf(axis.splits || (isTime && sc.distr == 1 ? _timeAxisSplits : sc.distr == 3 ? logAxisSplits : sc.distr == 4 ? asinhAxisSplits : numAxisSplits));
      axis.stroke = fnOrSelf(axis.stroke);
      axis.grid.stroke = fnOrSelf(axis.grid.stroke);
      axis.ticks.stroke = fnOrSelf(axis.ticks.stroke);
      axis.border.stroke = fnOrSelf(axis.border.stroke);
      let av = axis.values;
      axis.values = // static array of tick values
      isArr(av) && !isArr(av[0]) ? fnOrSelf(av) : (
        // temporal
        isTime ? (
          // config array of fmtDate string tpls
          isArr(av) ? timeAxisVals(_tzDate, timeAxisStamps(av, _fmtDate)) : (
            // fmtDate string tpl
            isStr(av) ? timeAxisVal(_tzDate, av) : av || _timeAxisVals
          )
        ) : av || numAxisVals
      );
      axis.filter = fnOrSelf(axis.filter || (sc.distr >= 3 && sc.log == 10 ? log10AxisValsFilt : sc.distr == 3 && sc.log == 2 ? log2AxisValsFilt : retArg1));
      axis.font = pxRatioFont(axis.font);
      axis.labelFont = pxRatioFont(axis.labelFont);
      axis._size = axis.size(self, null, i4, 0);
      axis._space = axis._rotate = axis._incrs = axis._found = // foundIncrSpace
      axis._splits = axis._values = null;
      if (axis._size > 0) {
        sidesWithAxes[i4] = true;
        axis._el = placeDiv(AXIS, wrap);
      }
    }
  }
  function autoPadSide(self2, side, sidesWithAxes2, cycleNum) {
    let [hasTopAxis, hasRgtAxis, hasBtmAxis, hasLftAxis] = sidesWithAxes2;
    let ori = side % 2;
    let size = 0;
    if (ori == 0 && (hasLftAxis || hasRgtAxis))
      size = side == 0 && !hasTopAxis || side == 2 && !hasBtmAxis ? round(xAxisOpts.size / 3) : 0;
    if (ori == 1 && (hasTopAxis || hasBtmAxis))
      size = side == 1 && !hasRgtAxis || side == 3 && !hasLftAxis ? round(yAxisOpts.size / 2) : 0;
    return size;
  }
  const padding = self.padding = (opts.padding || [autoPadSide, autoPadSide, autoPadSide, autoPadSide]).map((p5) => fnOrSelf(ifNull(p5, autoPadSide)));
  const _padding = self._padding = padding.map((p5, i4) => p5(self, i4, sidesWithAxes, 0));
  let dataLen;
  let i0 = null;
  let i1 = null;
  const idxs = mode == 1 ? series[0].idxs : null;
  let data0 = null;
  let viaAutoScaleX = false;
  function setData(_data, _resetScales) {
    data = _data == null ? [] : _data;
    self.data = self._data = data;
    if (mode == 2) {
      dataLen = 0;
      for (let i4 = 1; i4 < series.length; i4++)
        dataLen += data[i4][0].length;
    } else {
      if (data.length == 0)
        self.data = self._data = data = [[]];
      data0 = data[0];
      dataLen = data0.length;
      let scaleData = data;
      if (xScaleDistr == 2) {
        scaleData = data.slice();
        let _data0 = scaleData[0] = Array(dataLen);
        for (let i4 = 0; i4 < dataLen; i4++)
          _data0[i4] = i4;
      }
      self._data = data = scaleData;
    }
    resetYSeries(true);
    fire("setData");
    if (xScaleDistr == 2) {
      shouldConvergeSize = true;
    }
    if (_resetScales !== false) {
      let xsc = scaleX;
      if (xsc.auto(self, viaAutoScaleX))
        autoScaleX();
      else
        _setScale(xScaleKey, xsc.min, xsc.max);
      shouldSetCursor = shouldSetCursor || cursor.left >= 0;
      shouldSetLegend = true;
      commit();
    }
  }
  self.setData = setData;
  function autoScaleX() {
    viaAutoScaleX = true;
    let _min, _max;
    if (mode == 1) {
      if (dataLen > 0) {
        i0 = idxs[0] = 0;
        i1 = idxs[1] = dataLen - 1;
        _min = data[0][i0];
        _max = data[0][i1];
        if (xScaleDistr == 2) {
          _min = i0;
          _max = i1;
        } else if (_min == _max) {
          if (xScaleDistr == 3)
            [_min, _max] = rangeLog(_min, _min, scaleX.log, false);
          else if (xScaleDistr == 4)
            [_min, _max] = rangeAsinh(_min, _min, scaleX.log, false);
          else if (scaleX.time)
            _max = _min + round(86400 / ms);
          else
            [_min, _max] = rangeNum(_min, _max, rangePad, true);
        }
      } else {
        i0 = idxs[0] = _min = null;
        i1 = idxs[1] = _max = null;
      }
    }
    _setScale(xScaleKey, _min, _max);
  }
  let ctxStroke, ctxFill, ctxWidth, ctxDash, ctxJoin, ctxCap, ctxFont, ctxAlign, ctxBaseline;
  let ctxAlpha;
  function setCtxStyle(stroke, width, dash, cap, fill2, join2) {
    stroke ??= transparent;
    dash ??= EMPTY_ARR;
    cap ??= "butt";
    fill2 ??= transparent;
    join2 ??= "round";
    if (stroke != ctxStroke)
      ctx.strokeStyle = ctxStroke = stroke;
    if (fill2 != ctxFill)
      ctx.fillStyle = ctxFill = fill2;
    if (width != ctxWidth)
      ctx.lineWidth = ctxWidth = width;
    if (join2 != ctxJoin)
      ctx.lineJoin = ctxJoin = join2;
    if (cap != ctxCap)
      ctx.lineCap = ctxCap = cap;
    if (dash != ctxDash)
      ctx.setLineDash(ctxDash = dash);
  }
  function setFontStyle(font2, fill2, align, baseline) {
    if (fill2 != ctxFill)
      ctx.fillStyle = ctxFill = fill2;
    if (font2 != ctxFont)
      ctx.font = ctxFont = font2;
    if (align != ctxAlign)
      ctx.textAlign = ctxAlign = align;
    if (baseline != ctxBaseline)
      ctx.textBaseline = ctxBaseline = baseline;
  }
  function accScale(wsc, psc, facet2, data2, sorted = 0) {
    if (data2.length > 0 && wsc.auto(self, viaAutoScaleX) && (psc == null || psc.min == null)) {
      let _i0 = ifNull(i0, 0);
      let _i1 = ifNull(i1, data2.length - 1);
      let minMax = facet2.min == null ? getMinMax(data2, _i0, _i1, sorted, wsc.distr == 3) : [facet2.min, facet2.max];
      wsc.min = min(wsc.min, facet2.min = minMax[0]);
      wsc.max = max(wsc.max, facet2.max = minMax[1]);
    }
  }
  const AUTOSCALE = { min: null, max: null };
  function setScales() {
    for (let k4 in scales) {
      let sc = scales[k4];
      if (pendScales[k4] == null && // scales that have never been set (on init)
      (sc.min == null || // or auto scales when the x scale was explicitly set
      pendScales[xScaleKey] != null && sc.auto(self, viaAutoScaleX))) {
        pendScales[k4] = AUTOSCALE;
      }
    }
    for (let k4 in scales) {
      let sc = scales[k4];
      if (pendScales[k4] == null && sc.from != null && pendScales[sc.from] != null)
        pendScales[k4] = AUTOSCALE;
    }
    if (pendScales[xScaleKey] != null)
      resetYSeries(true);
    let wipScales = {};
    for (let k4 in pendScales) {
      let psc = pendScales[k4];
      if (psc != null) {
        let wsc = wipScales[k4] = copy(scales[k4], fastIsObj);
        if (psc.min != null)
          assign(wsc, psc);
        else if (k4 != xScaleKey || mode == 2) {
          if (dataLen == 0 && wsc.from == null) {
            let minMax = wsc.range(self, null, null, k4);
            wsc.min = minMax[0];
            wsc.max = minMax[1];
          } else {
            wsc.min = inf;
            wsc.max = -inf;
          }
        }
      }
    }
    if (dataLen > 0) {
      series.forEach((s4, i4) => {
        if (mode == 1) {
          let k4 = s4.scale;
          let psc = pendScales[k4];
          if (psc == null)
            return;
          let wsc = wipScales[k4];
          if (i4 == 0) {
            let minMax = wsc.range(self, wsc.min, wsc.max, k4);
            wsc.min = minMax[0];
            wsc.max = minMax[1];
            i0 = closestIdx(wsc.min, data[0]);
            i1 = closestIdx(wsc.max, data[0]);
            if (i1 - i0 > 1) {
              if (data[0][i0] < wsc.min)
                i0++;
              if (data[0][i1] > wsc.max)
                i1--;
            }
            s4.min = data0[i0];
            s4.max = data0[i1];
          } else if (s4.show && s4.auto)
            accScale(wsc, psc, s4, data[i4], s4.sorted);
          s4.idxs[0] = i0;
          s4.idxs[1] = i1;
        } else {
          if (i4 > 0) {
            if (s4.show && s4.auto) {
              let [xFacet, yFacet] = s4.facets;
              let xScaleKey2 = xFacet.scale;
              let yScaleKey = yFacet.scale;
              let [xData, yData] = data[i4];
              let wscx = wipScales[xScaleKey2];
              let wscy = wipScales[yScaleKey];
              wscx != null && accScale(wscx, pendScales[xScaleKey2], xFacet, xData, xFacet.sorted);
              wscy != null && accScale(wscy, pendScales[yScaleKey], yFacet, yData, yFacet.sorted);
              s4.min = yFacet.min;
              s4.max = yFacet.max;
            }
          }
        }
      });
      for (let k4 in wipScales) {
        let wsc = wipScales[k4];
        let psc = pendScales[k4];
        if (wsc.from == null && (psc == null || psc.min == null)) {
          let minMax = wsc.range(
            self,
            wsc.min == inf ? null : wsc.min,
            wsc.max == -inf ? null : wsc.max,
            k4
          );
          wsc.min = minMax[0];
          wsc.max = minMax[1];
        }
      }
    }
    for (let k4 in wipScales) {
      let wsc = wipScales[k4];
      if (wsc.from != null) {
        let base = wipScales[wsc.from];
        if (base.min == null)
          wsc.min = wsc.max = null;
        else {
          let minMax = wsc.range(self, base.min, base.max, k4);
          wsc.min = minMax[0];
          wsc.max = minMax[1];
        }
      }
    }
    let changed = {};
    let anyChanged = false;
    for (let k4 in wipScales) {
      let wsc = wipScales[k4];
      let sc = scales[k4];
      if (sc.min != wsc.min || sc.max != wsc.max) {
        sc.min = wsc.min;
        sc.max = wsc.max;
        let distr = sc.distr;
        sc._min = distr == 3 ? log10(sc.min) : distr == 4 ? asinh(sc.min, sc.asinh) : distr == 100 ? sc.fwd(sc.min) : sc.min;
        sc._max = distr == 3 ? log10(sc.max) : distr == 4 ? asinh(sc.max, sc.asinh) : distr == 100 ? sc.fwd(sc.max) : sc.max;
        changed[k4] = anyChanged = true;
      }
    }
    if (anyChanged) {
      series.forEach((s4, i4) => {
        if (mode == 2) {
          if (i4 > 0 && changed.y)
            s4._paths = null;
        } else {
          if (changed[s4.scale])
            s4._paths = null;
        }
      });
      for (let k4 in changed) {
        shouldConvergeSize = true;
        fire("setScale", k4);
      }
      if (showCursor && cursor.left >= 0)
        shouldSetCursor = shouldSetLegend = true;
    }
    for (let k4 in pendScales)
      pendScales[k4] = null;
  }
  function getOuterIdxs(ydata) {
    let _i0 = clamp(i0 - 1, 0, dataLen - 1);
    let _i1 = clamp(i1 + 1, 0, dataLen - 1);
    while (ydata[_i0] == null && _i0 > 0)
      _i0--;
    while (ydata[_i1] == null && _i1 < dataLen - 1)
      _i1++;
    return [_i0, _i1];
  }
  function drawSeries() {
    if (dataLen > 0) {
      let shouldAlpha = series.some((s4) => s4._focus) && ctxAlpha != focus.alpha;
      if (shouldAlpha)
        ctx.globalAlpha = ctxAlpha = focus.alpha;
      series.forEach((s4, i4) => {
        if (i4 > 0 && s4.show) {
          cacheStrokeFill(i4, false);
          cacheStrokeFill(i4, true);
          if (s4._paths == null) {
            let _ctxAlpha = ctxAlpha;
            if (ctxAlpha != s4.alpha)
              ctx.globalAlpha = ctxAlpha = s4.alpha;
            let _idxs = mode == 2 ? [0, data[i4][0].length - 1] : getOuterIdxs(data[i4]);
            s4._paths = s4.paths(self, i4, _idxs[0], _idxs[1]);
            if (ctxAlpha != _ctxAlpha)
              ctx.globalAlpha = ctxAlpha = _ctxAlpha;
          }
        }
      });
      series.forEach((s4, i4) => {
        if (i4 > 0 && s4.show) {
          let _ctxAlpha = ctxAlpha;
          if (ctxAlpha != s4.alpha)
            ctx.globalAlpha = ctxAlpha = s4.alpha;
          s4._paths != null && drawPath(i4, false);
          {
            let _gaps = s4._paths != null ? s4._paths.gaps : null;
            let show = s4.points.show(self, i4, i0, i1, _gaps);
            let idxs2 = s4.points.filter(self, i4, show, _gaps);
            if (show || idxs2) {
              s4.points._paths = s4.points.paths(self, i4, i0, i1, idxs2);
              drawPath(i4, true);
            }
          }
          if (ctxAlpha != _ctxAlpha)
            ctx.globalAlpha = ctxAlpha = _ctxAlpha;
          fire("drawSeries", i4);
        }
      });
      if (shouldAlpha)
        ctx.globalAlpha = ctxAlpha = 1;
    }
  }
  function cacheStrokeFill(si, _points) {
    let s4 = _points ? series[si].points : series[si];
    s4._stroke = s4.stroke(self, si);
    s4._fill = s4.fill(self, si);
  }
  function drawPath(si, _points) {
    let s4 = _points ? series[si].points : series[si];
    let {
      stroke,
      fill: fill2,
      clip: gapsClip,
      flags,
      _stroke: strokeStyle = s4._stroke,
      _fill: fillStyle = s4._fill,
      _width: width = s4.width
    } = s4._paths;
    width = roundDec(width * pxRatio, 3);
    let boundsClip = null;
    let offset = width % 2 / 2;
    if (_points && fillStyle == null)
      fillStyle = width > 0 ? "#fff" : strokeStyle;
    let _pxAlign = s4.pxAlign == 1 && offset > 0;
    _pxAlign && ctx.translate(offset, offset);
    if (!_points) {
      let lft = plotLft - width / 2, top = plotTop - width / 2, wid = plotWid + width, hgt = plotHgt + width;
      boundsClip = new Path2D();
      boundsClip.rect(lft, top, wid, hgt);
    }
    if (_points)
      strokeFill(strokeStyle, width, s4.dash, s4.cap, fillStyle, stroke, fill2, flags, gapsClip);
    else
      fillStroke(si, strokeStyle, width, s4.dash, s4.cap, fillStyle, stroke, fill2, flags, boundsClip, gapsClip);
    _pxAlign && ctx.translate(-offset, -offset);
  }
  function fillStroke(si, strokeStyle, lineWidth, lineDash, lineCap, fillStyle, strokePath, fillPath, flags, boundsClip, gapsClip) {
    let didStrokeFill = false;
    flags != 0 && bands.forEach((b4, bi) => {
      if (b4.series[0] == si) {
        let lowerEdge = series[b4.series[1]];
        let lowerData = data[b4.series[1]];
        let bandClip = (lowerEdge._paths || EMPTY_OBJ).band;
        if (isArr(bandClip))
          bandClip = b4.dir == 1 ? bandClip[0] : bandClip[1];
        let gapsClip2;
        let _fillStyle = null;
        if (lowerEdge.show && bandClip && hasData(lowerData, i0, i1)) {
          _fillStyle = b4.fill(self, bi) || fillStyle;
          gapsClip2 = lowerEdge._paths.clip;
        } else
          bandClip = null;
        strokeFill(strokeStyle, lineWidth, lineDash, lineCap, _fillStyle, strokePath, fillPath, flags, boundsClip, gapsClip, gapsClip2, bandClip);
        didStrokeFill = true;
      }
    });
    if (!didStrokeFill)
      strokeFill(strokeStyle, lineWidth, lineDash, lineCap, fillStyle, strokePath, fillPath, flags, boundsClip, gapsClip);
  }
  const CLIP_FILL_STROKE = BAND_CLIP_FILL | BAND_CLIP_STROKE;
  function strokeFill(strokeStyle, lineWidth, lineDash, lineCap, fillStyle, strokePath, fillPath, flags, boundsClip, gapsClip, gapsClip2, bandClip) {
    setCtxStyle(strokeStyle, lineWidth, lineDash, lineCap, fillStyle);
    if (boundsClip || gapsClip || bandClip) {
      ctx.save();
      boundsClip && ctx.clip(boundsClip);
      gapsClip && ctx.clip(gapsClip);
    }
    if (bandClip) {
      if ((flags & CLIP_FILL_STROKE) == CLIP_FILL_STROKE) {
        ctx.clip(bandClip);
        gapsClip2 && ctx.clip(gapsClip2);
        doFill(fillStyle, fillPath);
        doStroke(strokeStyle, strokePath, lineWidth);
      } else if (flags & BAND_CLIP_STROKE) {
        doFill(fillStyle, fillPath);
        ctx.clip(bandClip);
        doStroke(strokeStyle, strokePath, lineWidth);
      } else if (flags & BAND_CLIP_FILL) {
        ctx.save();
        ctx.clip(bandClip);
        gapsClip2 && ctx.clip(gapsClip2);
        doFill(fillStyle, fillPath);
        ctx.restore();
        doStroke(strokeStyle, strokePath, lineWidth);
      }
    } else {
      doFill(fillStyle, fillPath);
      doStroke(strokeStyle, strokePath, lineWidth);
    }
    if (boundsClip || gapsClip || bandClip)
      ctx.restore();
  }
  function doStroke(strokeStyle, strokePath, lineWidth) {
    if (lineWidth > 0) {
      if (strokePath instanceof Map) {
        strokePath.forEach((strokePath2, strokeStyle2) => {
          ctx.strokeStyle = ctxStroke = strokeStyle2;
          ctx.stroke(strokePath2);
        });
      } else
        strokePath != null && strokeStyle && ctx.stroke(strokePath);
    }
  }
  function doFill(fillStyle, fillPath) {
    if (fillPath instanceof Map) {
      fillPath.forEach((fillPath2, fillStyle2) => {
        ctx.fillStyle = ctxFill = fillStyle2;
        ctx.fill(fillPath2);
      });
    } else
      fillPath != null && fillStyle && ctx.fill(fillPath);
  }
  function getIncrSpace(axisIdx, min2, max2, fullDim) {
    let axis = axes[axisIdx];
    let incrSpace;
    if (fullDim <= 0)
      incrSpace = [0, 0];
    else {
      let minSpace = axis._space = axis.space(self, axisIdx, min2, max2, fullDim);
      let incrs = axis._incrs = axis.incrs(self, axisIdx, min2, max2, fullDim, minSpace);
      incrSpace = findIncr(min2, max2, incrs, fullDim, minSpace);
    }
    return axis._found = incrSpace;
  }
  function drawOrthoLines(offs, filts, ori, side, pos0, len, width, stroke, dash, cap) {
    let offset = width % 2 / 2;
    pxAlign == 1 && ctx.translate(offset, offset);
    setCtxStyle(stroke, width, dash, cap, stroke);
    ctx.beginPath();
    let x0, y0, x1, y1, pos1 = pos0 + (side == 0 || side == 3 ? -len : len);
    if (ori == 0) {
      y0 = pos0;
      y1 = pos1;
    } else {
      x0 = pos0;
      x1 = pos1;
    }
    for (let i4 = 0; i4 < offs.length; i4++) {
      if (filts[i4] != null) {
        if (ori == 0)
          x0 = x1 = offs[i4];
        else
          y0 = y1 = offs[i4];
        ctx.moveTo(x0, y0);
        ctx.lineTo(x1, y1);
      }
    }
    ctx.stroke();
    pxAlign == 1 && ctx.translate(-offset, -offset);
  }
  function axesCalc(cycleNum) {
    let converged = true;
    axes.forEach((axis, i4) => {
      if (!axis.show)
        return;
      let scale = scales[axis.scale];
      if (scale.min == null) {
        if (axis._show) {
          converged = false;
          axis._show = false;
          resetYSeries(false);
        }
        return;
      } else {
        if (!axis._show) {
          converged = false;
          axis._show = true;
          resetYSeries(false);
        }
      }
      let side = axis.side;
      let ori = side % 2;
      let { min: min2, max: max2 } = scale;
      let [_incr, _space] = getIncrSpace(i4, min2, max2, ori == 0 ? plotWidCss : plotHgtCss);
      if (_space == 0)
        return;
      let forceMin = scale.distr == 2;
      let _splits = axis._splits = axis.splits(self, i4, min2, max2, _incr, _space, forceMin);
      let splits = scale.distr == 2 ? _splits.map((i5) => data0[i5]) : _splits;
      let incr = scale.distr == 2 ? data0[_splits[1]] - data0[_splits[0]] : _incr;
      let values = axis._values = axis.values(self, axis.filter(self, splits, i4, _space, incr), i4, _space, incr);
      axis._rotate = side == 2 ? axis.rotate(self, values, i4, _space) : 0;
      let oldSize = axis._size;
      axis._size = ceil(axis.size(self, values, i4, cycleNum));
      if (oldSize != null && axis._size != oldSize)
        converged = false;
    });
    return converged;
  }
  function paddingCalc(cycleNum) {
    let converged = true;
    padding.forEach((p5, i4) => {
      let _p = p5(self, i4, sidesWithAxes, cycleNum);
      if (_p != _padding[i4])
        converged = false;
      _padding[i4] = _p;
    });
    return converged;
  }
  function drawAxesGrid() {
    for (let i4 = 0; i4 < axes.length; i4++) {
      let axis = axes[i4];
      if (!axis.show || !axis._show)
        continue;
      let side = axis.side;
      let ori = side % 2;
      let x3, y5;
      let fillStyle = axis.stroke(self, i4);
      let shiftDir = side == 0 || side == 3 ? -1 : 1;
      let [_incr, _space] = axis._found;
      if (axis.label != null) {
        let shiftAmt2 = axis.labelGap * shiftDir;
        let baseLpos = round((axis._lpos + shiftAmt2) * pxRatio);
        setFontStyle(axis.labelFont[0], fillStyle, "center", side == 2 ? TOP : BOTTOM);
        ctx.save();
        if (ori == 1) {
          x3 = y5 = 0;
          ctx.translate(
            baseLpos,
            round(plotTop + plotHgt / 2)
          );
          ctx.rotate((side == 3 ? -PI : PI) / 2);
        } else {
          x3 = round(plotLft + plotWid / 2);
          y5 = baseLpos;
        }
        let _label = isFn(axis.label) ? axis.label(self, i4, _incr, _space) : axis.label;
        ctx.fillText(_label, x3, y5);
        ctx.restore();
      }
      if (_space == 0)
        continue;
      let scale = scales[axis.scale];
      let plotDim = ori == 0 ? plotWid : plotHgt;
      let plotOff = ori == 0 ? plotLft : plotTop;
      let _splits = axis._splits;
      let splits = scale.distr == 2 ? _splits.map((i5) => data0[i5]) : _splits;
      let incr = scale.distr == 2 ? data0[_splits[1]] - data0[_splits[0]] : _incr;
      let ticks2 = axis.ticks;
      let border2 = axis.border;
      let _tickSize = ticks2.show ? ticks2.size : 0;
      let tickSize = round(_tickSize * pxRatio);
      let axisGap = round((axis.alignTo == 2 ? axis._size - _tickSize - axis.gap : axis.gap) * pxRatio);
      let angle = axis._rotate * -PI / 180;
      let basePos = pxRound(axis._pos * pxRatio);
      let shiftAmt = (tickSize + axisGap) * shiftDir;
      let finalPos = basePos + shiftAmt;
      y5 = ori == 0 ? finalPos : 0;
      x3 = ori == 1 ? finalPos : 0;
      let font2 = axis.font[0];
      let textAlign = axis.align == 1 ? LEFT : axis.align == 2 ? RIGHT : angle > 0 ? LEFT : angle < 0 ? RIGHT : ori == 0 ? "center" : side == 3 ? RIGHT : LEFT;
      let textBaseline = angle || ori == 1 ? "middle" : side == 2 ? TOP : BOTTOM;
      setFontStyle(font2, fillStyle, textAlign, textBaseline);
      let lineHeight = axis.font[1] * axis.lineGap;
      let canOffs = _splits.map((val) => pxRound(getPos(val, scale, plotDim, plotOff)));
      let _values = axis._values;
      for (let i5 = 0; i5 < _values.length; i5++) {
        let val = _values[i5];
        if (val != null) {
          if (ori == 0)
            x3 = canOffs[i5];
          else
            y5 = canOffs[i5];
          val = "" + val;
          let _parts = val.indexOf("\n") == -1 ? [val] : val.split(/\n/gm);
          for (let j4 = 0; j4 < _parts.length; j4++) {
            let text = _parts[j4];
            if (angle) {
              ctx.save();
              ctx.translate(x3, y5 + j4 * lineHeight);
              ctx.rotate(angle);
              ctx.fillText(text, 0, 0);
              ctx.restore();
            } else
              ctx.fillText(text, x3, y5 + j4 * lineHeight);
          }
        }
      }
      if (ticks2.show) {
        drawOrthoLines(
          canOffs,
          ticks2.filter(self, splits, i4, _space, incr),
          ori,
          side,
          basePos,
          tickSize,
          roundDec(ticks2.width * pxRatio, 3),
          ticks2.stroke(self, i4),
          ticks2.dash,
          ticks2.cap
        );
      }
      let grid2 = axis.grid;
      if (grid2.show) {
        drawOrthoLines(
          canOffs,
          grid2.filter(self, splits, i4, _space, incr),
          ori,
          ori == 0 ? 2 : 1,
          ori == 0 ? plotTop : plotLft,
          ori == 0 ? plotHgt : plotWid,
          roundDec(grid2.width * pxRatio, 3),
          grid2.stroke(self, i4),
          grid2.dash,
          grid2.cap
        );
      }
      if (border2.show) {
        drawOrthoLines(
          [basePos],
          [1],
          ori == 0 ? 1 : 0,
          ori == 0 ? 1 : 2,
          ori == 1 ? plotTop : plotLft,
          ori == 1 ? plotHgt : plotWid,
          roundDec(border2.width * pxRatio, 3),
          border2.stroke(self, i4),
          border2.dash,
          border2.cap
        );
      }
    }
    fire("drawAxes");
  }
  function resetYSeries(minMax) {
    series.forEach((s4, i4) => {
      if (i4 > 0) {
        s4._paths = null;
        if (minMax) {
          if (mode == 1) {
            s4.min = null;
            s4.max = null;
          } else {
            s4.facets.forEach((f5) => {
              f5.min = null;
              f5.max = null;
            });
          }
        }
      }
    });
  }
  let queuedCommit = false;
  let deferHooks = false;
  let hooksQueue = [];
  function flushHooks() {
    deferHooks = false;
    for (let i4 = 0; i4 < hooksQueue.length; i4++)
      fire(...hooksQueue[i4]);
    hooksQueue.length = 0;
  }
  function commit() {
    if (!queuedCommit) {
      microTask(_commit);
      queuedCommit = true;
    }
  }
  function batch(fn, _deferHooks = false) {
    queuedCommit = true;
    deferHooks = _deferHooks;
    fn(self);
    _commit();
    if (_deferHooks && hooksQueue.length > 0)
      queueMicrotask(flushHooks);
  }
  self.batch = batch;
  function _commit() {
    if (shouldSetScales) {
      setScales();
      shouldSetScales = false;
    }
    if (shouldConvergeSize) {
      convergeSize();
      shouldConvergeSize = false;
    }
    if (shouldSetSize) {
      setStylePx(under, LEFT, plotLftCss);
      setStylePx(under, TOP, plotTopCss);
      setStylePx(under, WIDTH, plotWidCss);
      setStylePx(under, HEIGHT, plotHgtCss);
      setStylePx(over, LEFT, plotLftCss);
      setStylePx(over, TOP, plotTopCss);
      setStylePx(over, WIDTH, plotWidCss);
      setStylePx(over, HEIGHT, plotHgtCss);
      setStylePx(wrap, WIDTH, fullWidCss);
      setStylePx(wrap, HEIGHT, fullHgtCss);
      can.width = round(fullWidCss * pxRatio);
      can.height = round(fullHgtCss * pxRatio);
      axes.forEach(({ _el, _show, _size, _pos, side }) => {
        if (_el != null) {
          if (_show) {
            let posOffset = side === 3 || side === 0 ? _size : 0;
            let isVt = side % 2 == 1;
            setStylePx(_el, isVt ? "left" : "top", _pos - posOffset);
            setStylePx(_el, isVt ? "width" : "height", _size);
            setStylePx(_el, isVt ? "top" : "left", isVt ? plotTopCss : plotLftCss);
            setStylePx(_el, isVt ? "height" : "width", isVt ? plotHgtCss : plotWidCss);
            remClass(_el, OFF);
          } else
            addClass(_el, OFF);
        }
      });
      ctxStroke = ctxFill = ctxWidth = ctxJoin = ctxCap = ctxFont = ctxAlign = ctxBaseline = ctxDash = null;
      ctxAlpha = 1;
      syncRect(true);
      if (plotLftCss != _plotLftCss || plotTopCss != _plotTopCss || plotWidCss != _plotWidCss || plotHgtCss != _plotHgtCss) {
        resetYSeries(false);
        let pctWid = plotWidCss / _plotWidCss;
        let pctHgt = plotHgtCss / _plotHgtCss;
        if (showCursor && !shouldSetCursor && cursor.left >= 0) {
          cursor.left *= pctWid;
          cursor.top *= pctHgt;
          vCursor && elTrans(vCursor, round(cursor.left), 0, plotWidCss, plotHgtCss);
          hCursor && elTrans(hCursor, 0, round(cursor.top), plotWidCss, plotHgtCss);
          for (let i4 = 0; i4 < cursorPts.length; i4++) {
            let pt = cursorPts[i4];
            if (pt != null) {
              cursorPtsLft[i4] *= pctWid;
              cursorPtsTop[i4] *= pctHgt;
              elTrans(pt, ceil(cursorPtsLft[i4]), ceil(cursorPtsTop[i4]), plotWidCss, plotHgtCss);
            }
          }
        }
        if (select.show && !shouldSetSelect && select.left >= 0 && select.width > 0) {
          select.left *= pctWid;
          select.width *= pctWid;
          select.top *= pctHgt;
          select.height *= pctHgt;
          for (let prop in _hideProps)
            setStylePx(selectDiv, prop, select[prop]);
        }
        _plotLftCss = plotLftCss;
        _plotTopCss = plotTopCss;
        _plotWidCss = plotWidCss;
        _plotHgtCss = plotHgtCss;
      }
      fire("setSize");
      shouldSetSize = false;
    }
    if (fullWidCss > 0 && fullHgtCss > 0) {
      ctx.clearRect(0, 0, can.width, can.height);
      fire("drawClear");
      drawOrder.forEach((fn) => fn());
      fire("draw");
    }
    if (select.show && shouldSetSelect) {
      setSelect(select);
      shouldSetSelect = false;
    }
    if (showCursor && shouldSetCursor) {
      updateCursor(null, true, false);
      shouldSetCursor = false;
    }
    if (legend.show && legend.live && shouldSetLegend) {
      setLegend();
      shouldSetLegend = false;
    }
    if (!ready) {
      ready = true;
      self.status = 1;
      fire("ready");
    }
    viaAutoScaleX = false;
    queuedCommit = false;
  }
  self.redraw = (rebuildPaths, recalcAxes) => {
    shouldConvergeSize = recalcAxes || false;
    if (rebuildPaths !== false)
      _setScale(xScaleKey, scaleX.min, scaleX.max);
    else
      commit();
  };
  function setScale(key2, opts2) {
    let sc = scales[key2];
    if (sc.from == null) {
      if (dataLen == 0) {
        let minMax = sc.range(self, opts2.min, opts2.max, key2);
        opts2.min = minMax[0];
        opts2.max = minMax[1];
      }
      if (opts2.min > opts2.max) {
        let _min = opts2.min;
        opts2.min = opts2.max;
        opts2.max = _min;
      }
      if (dataLen > 1 && opts2.min != null && opts2.max != null && opts2.max - opts2.min < 1e-16)
        return;
      if (key2 == xScaleKey) {
        if (sc.distr == 2 && dataLen > 0) {
          opts2.min = closestIdx(opts2.min, data[0]);
          opts2.max = closestIdx(opts2.max, data[0]);
          if (opts2.min == opts2.max)
            opts2.max++;
        }
      }
      pendScales[key2] = opts2;
      shouldSetScales = true;
      commit();
    }
  }
  self.setScale = setScale;
  let xCursor;
  let yCursor;
  let vCursor;
  let hCursor;
  let rawMouseLeft0;
  let rawMouseTop0;
  let mouseLeft0;
  let mouseTop0;
  let rawMouseLeft1;
  let rawMouseTop1;
  let mouseLeft1;
  let mouseTop1;
  let dragging = false;
  const drag = cursor.drag;
  let dragX = drag.x;
  let dragY = drag.y;
  if (showCursor) {
    if (cursor.x)
      xCursor = placeDiv(CURSOR_X, over);
    if (cursor.y)
      yCursor = placeDiv(CURSOR_Y, over);
    if (scaleX.ori == 0) {
      vCursor = xCursor;
      hCursor = yCursor;
    } else {
      vCursor = yCursor;
      hCursor = xCursor;
    }
    mouseLeft1 = cursor.left;
    mouseTop1 = cursor.top;
  }
  const select = self.select = assign({
    show: true,
    over: true,
    left: 0,
    width: 0,
    top: 0,
    height: 0
  }, opts.select);
  const selectDiv = select.show ? placeDiv(SELECT, select.over ? over : under) : null;
  function setSelect(opts2, _fire) {
    if (select.show) {
      for (let prop in opts2) {
        select[prop] = opts2[prop];
        if (prop in _hideProps)
          setStylePx(selectDiv, prop, opts2[prop]);
      }
      _fire !== false && fire("setSelect");
    }
  }
  self.setSelect = setSelect;
  function toggleDOM(i4) {
    let s4 = series[i4];
    if (s4.show)
      showLegend && remClass(legendRows[i4], OFF);
    else {
      showLegend && addClass(legendRows[i4], OFF);
      if (showCursor) {
        let pt = cursorOnePt ? cursorPts[0] : cursorPts[i4];
        pt != null && elTrans(pt, -10, -10, plotWidCss, plotHgtCss);
      }
    }
  }
  function _setScale(key2, min2, max2) {
    setScale(key2, { min: min2, max: max2 });
  }
  function setSeries(i4, opts2, _fire, _pub) {
    if (opts2.focus != null)
      setFocus(i4);
    if (opts2.show != null) {
      series.forEach((s4, si) => {
        if (si > 0 && (i4 == si || i4 == null)) {
          s4.show = opts2.show;
          toggleDOM(si);
          if (mode == 2) {
            _setScale(s4.facets[0].scale, null, null);
            _setScale(s4.facets[1].scale, null, null);
          } else
            _setScale(s4.scale, null, null);
          commit();
        }
      });
    }
    _fire !== false && fire("setSeries", i4, opts2);
    _pub && pubSync("setSeries", self, i4, opts2);
  }
  self.setSeries = setSeries;
  function setBand(bi, opts2) {
    assign(bands[bi], opts2);
  }
  function addBand(opts2, bi) {
    opts2.fill = fnOrSelf(opts2.fill || null);
    opts2.dir = ifNull(opts2.dir, -1);
    bi = bi == null ? bands.length : bi;
    bands.splice(bi, 0, opts2);
  }
  function delBand(bi) {
    if (bi == null)
      bands.length = 0;
    else
      bands.splice(bi, 1);
  }
  self.addBand = addBand;
  self.setBand = setBand;
  self.delBand = delBand;
  function setAlpha(i4, value) {
    series[i4].alpha = value;
    if (showCursor && cursorPts[i4] != null)
      cursorPts[i4].style.opacity = value;
    if (showLegend && legendRows[i4])
      legendRows[i4].style.opacity = value;
  }
  let closestDist;
  let closestSeries;
  let focusedSeries;
  const FOCUS_TRUE = { focus: true };
  function setFocus(i4) {
    if (i4 != focusedSeries) {
      let allFocused = i4 == null;
      let _setAlpha = focus.alpha != 1;
      series.forEach((s4, i22) => {
        if (mode == 1 || i22 > 0) {
          let isFocused = allFocused || i22 == 0 || i22 == i4;
          s4._focus = allFocused ? null : isFocused;
          _setAlpha && setAlpha(i22, isFocused ? 1 : focus.alpha);
        }
      });
      focusedSeries = i4;
      _setAlpha && commit();
    }
  }
  if (showLegend && cursorFocus) {
    onMouse(mouseleave, legendTable, (e4) => {
      if (cursor._lock)
        return;
      setCursorEvent(e4);
      if (focusedSeries != null)
        setSeries(null, FOCUS_TRUE, true, syncOpts.setSeries);
    });
  }
  function posToVal(pos, scale, can2) {
    let sc = scales[scale];
    if (can2)
      pos = pos / pxRatio - (sc.ori == 1 ? plotTopCss : plotLftCss);
    let dim = plotWidCss;
    if (sc.ori == 1) {
      dim = plotHgtCss;
      pos = dim - pos;
    }
    if (sc.dir == -1)
      pos = dim - pos;
    let _min = sc._min, _max = sc._max, pct = pos / dim;
    let sv = _min + (_max - _min) * pct;
    let distr = sc.distr;
    return distr == 3 ? pow(10, sv) : distr == 4 ? sinh(sv, sc.asinh) : distr == 100 ? sc.bwd(sv) : sv;
  }
  function closestIdxFromXpos(pos, can2) {
    let v4 = posToVal(pos, xScaleKey, can2);
    return closestIdx(v4, data[0], i0, i1);
  }
  self.valToIdx = (val) => closestIdx(val, data[0]);
  self.posToIdx = closestIdxFromXpos;
  self.posToVal = posToVal;
  self.valToPos = (val, scale, can2) => scales[scale].ori == 0 ? getHPos(
    val,
    scales[scale],
    can2 ? plotWid : plotWidCss,
    can2 ? plotLft : 0
  ) : getVPos(
    val,
    scales[scale],
    can2 ? plotHgt : plotHgtCss,
    can2 ? plotTop : 0
  );
  self.setCursor = (opts2, _fire, _pub) => {
    mouseLeft1 = opts2.left;
    mouseTop1 = opts2.top;
    updateCursor(null, _fire, _pub);
  };
  function setSelH(off2, dim) {
    setStylePx(selectDiv, LEFT, select.left = off2);
    setStylePx(selectDiv, WIDTH, select.width = dim);
  }
  function setSelV(off2, dim) {
    setStylePx(selectDiv, TOP, select.top = off2);
    setStylePx(selectDiv, HEIGHT, select.height = dim);
  }
  let setSelX = scaleX.ori == 0 ? setSelH : setSelV;
  let setSelY = scaleX.ori == 1 ? setSelH : setSelV;
  function syncLegend() {
    if (showLegend && legend.live) {
      for (let i4 = mode == 2 ? 1 : 0; i4 < series.length; i4++) {
        if (i4 == 0 && multiValLegend)
          continue;
        let vals = legend.values[i4];
        let j4 = 0;
        for (let k4 in vals)
          legendCells[i4][j4++].firstChild.nodeValue = vals[k4];
      }
    }
  }
  function setLegend(opts2, _fire) {
    if (opts2 != null) {
      if (opts2.idxs) {
        opts2.idxs.forEach((didx, sidx) => {
          activeIdxs[sidx] = didx;
        });
      } else if (!isUndef(opts2.idx))
        activeIdxs.fill(opts2.idx);
      legend.idx = activeIdxs[0];
    }
    if (showLegend && legend.live) {
      for (let sidx = 0; sidx < series.length; sidx++) {
        if (sidx > 0 || mode == 1 && !multiValLegend)
          setLegendValues(sidx, activeIdxs[sidx]);
      }
      syncLegend();
    }
    shouldSetLegend = false;
    _fire !== false && fire("setLegend");
  }
  self.setLegend = setLegend;
  function setLegendValues(sidx, idx) {
    let s4 = series[sidx];
    let src = sidx == 0 && xScaleDistr == 2 ? data0 : data[sidx];
    let val;
    if (multiValLegend)
      val = s4.values(self, sidx, idx) ?? NULL_LEGEND_VALUES;
    else {
      val = s4.value(self, idx == null ? null : src[idx], sidx, idx);
      val = val == null ? NULL_LEGEND_VALUES : { _: val };
    }
    legend.values[sidx] = val;
  }
  function updateCursor(src, _fire, _pub) {
    rawMouseLeft1 = mouseLeft1;
    rawMouseTop1 = mouseTop1;
    [mouseLeft1, mouseTop1] = cursor.move(self, mouseLeft1, mouseTop1);
    cursor.left = mouseLeft1;
    cursor.top = mouseTop1;
    if (showCursor) {
      vCursor && elTrans(vCursor, round(mouseLeft1), 0, plotWidCss, plotHgtCss);
      hCursor && elTrans(hCursor, 0, round(mouseTop1), plotWidCss, plotHgtCss);
    }
    let idx;
    let noDataInRange = i0 > i1;
    closestDist = inf;
    closestSeries = null;
    let xDim = scaleX.ori == 0 ? plotWidCss : plotHgtCss;
    let yDim = scaleX.ori == 1 ? plotWidCss : plotHgtCss;
    if (mouseLeft1 < 0 || dataLen == 0 || noDataInRange) {
      idx = cursor.idx = null;
      for (let i4 = 0; i4 < series.length; i4++) {
        let pt = cursorPts[i4];
        pt != null && elTrans(pt, -10, -10, plotWidCss, plotHgtCss);
      }
      if (cursorFocus)
        setSeries(null, FOCUS_TRUE, true, src == null && syncOpts.setSeries);
      if (legend.live) {
        activeIdxs.fill(idx);
        shouldSetLegend = true;
      }
    } else {
      let mouseXPos, valAtPosX, xPos;
      if (mode == 1) {
        mouseXPos = scaleX.ori == 0 ? mouseLeft1 : mouseTop1;
        valAtPosX = posToVal(mouseXPos, xScaleKey);
        idx = cursor.idx = closestIdx(valAtPosX, data[0], i0, i1);
        xPos = valToPosX(data[0][idx], scaleX, xDim, 0);
      }
      let _ptLft = -10;
      let _ptTop = -10;
      let _ptWid = 0;
      let _ptHgt = 0;
      let _centered = true;
      let _ptFill = "";
      let _ptStroke = "";
      for (let i4 = mode == 2 ? 1 : 0; i4 < series.length; i4++) {
        let s4 = series[i4];
        let idx1 = activeIdxs[i4];
        let yVal1 = idx1 == null ? null : mode == 1 ? data[i4][idx1] : data[i4][1][idx1];
        let idx2 = cursor.dataIdx(self, i4, idx, valAtPosX);
        let yVal2 = idx2 == null ? null : mode == 1 ? data[i4][idx2] : data[i4][1][idx2];
        shouldSetLegend = shouldSetLegend || yVal2 != yVal1 || idx2 != idx1;
        activeIdxs[i4] = idx2;
        if (i4 > 0 && s4.show) {
          let xPos2 = idx2 == null ? -10 : idx2 == idx ? xPos : valToPosX(mode == 1 ? data[0][idx2] : data[i4][0][idx2], scaleX, xDim, 0);
          let yPos = yVal2 == null ? -10 : valToPosY(yVal2, mode == 1 ? scales[s4.scale] : scales[s4.facets[1].scale], yDim, 0);
          if (cursorFocus && yVal2 != null) {
            let mouseYPos = scaleX.ori == 1 ? mouseLeft1 : mouseTop1;
            let dist = abs(focus.dist(self, i4, idx2, yPos, mouseYPos));
            if (dist < closestDist) {
              let bias = focus.bias;
              if (bias != 0) {
                let mouseYVal = posToVal(mouseYPos, s4.scale);
                let seriesYValSign = yVal2 >= 0 ? 1 : -1;
                let mouseYValSign = mouseYVal >= 0 ? 1 : -1;
                if (mouseYValSign == seriesYValSign && (mouseYValSign == 1 ? bias == 1 ? yVal2 >= mouseYVal : yVal2 <= mouseYVal : (
                  // >= 0
                  bias == 1 ? yVal2 <= mouseYVal : yVal2 >= mouseYVal
                ))) {
                  closestDist = dist;
                  closestSeries = i4;
                }
              } else {
                closestDist = dist;
                closestSeries = i4;
              }
            }
          }
          if (shouldSetLegend || cursorOnePt) {
            let hPos, vPos;
            if (scaleX.ori == 0) {
              hPos = xPos2;
              vPos = yPos;
            } else {
              hPos = yPos;
              vPos = xPos2;
            }
            let ptWid, ptHgt, ptLft, ptTop, ptStroke, ptFill, centered = true, getBBox = points2.bbox;
            if (getBBox != null) {
              centered = false;
              let bbox = getBBox(self, i4);
              ptLft = bbox.left;
              ptTop = bbox.top;
              ptWid = bbox.width;
              ptHgt = bbox.height;
            } else {
              ptLft = hPos;
              ptTop = vPos;
              ptWid = ptHgt = points2.size(self, i4);
            }
            ptFill = points2.fill(self, i4);
            ptStroke = points2.stroke(self, i4);
            if (cursorOnePt) {
              if (i4 == closestSeries && closestDist <= focus.prox) {
                _ptLft = ptLft;
                _ptTop = ptTop;
                _ptWid = ptWid;
                _ptHgt = ptHgt;
                _centered = centered;
                _ptFill = ptFill;
                _ptStroke = ptStroke;
              }
            } else {
              let pt = cursorPts[i4];
              if (pt != null) {
                cursorPtsLft[i4] = ptLft;
                cursorPtsTop[i4] = ptTop;
                elSize(pt, ptWid, ptHgt, centered);
                elColor(pt, ptFill, ptStroke);
                elTrans(pt, ceil(ptLft), ceil(ptTop), plotWidCss, plotHgtCss);
              }
            }
          }
        }
      }
      if (cursorOnePt) {
        let p5 = focus.prox;
        let focusChanged = focusedSeries == null ? closestDist <= p5 : closestDist > p5 || closestSeries != focusedSeries;
        if (shouldSetLegend || focusChanged) {
          let pt = cursorPts[0];
          if (pt != null) {
            cursorPtsLft[0] = _ptLft;
            cursorPtsTop[0] = _ptTop;
            elSize(pt, _ptWid, _ptHgt, _centered);
            elColor(pt, _ptFill, _ptStroke);
            elTrans(pt, ceil(_ptLft), ceil(_ptTop), plotWidCss, plotHgtCss);
          }
        }
      }
    }
    if (select.show && dragging) {
      if (src != null) {
        let [xKey, yKey] = syncOpts.scales;
        let [matchXKeys, matchYKeys] = syncOpts.match;
        let [xKeySrc, yKeySrc] = src.cursor.sync.scales;
        let sdrag = src.cursor.drag;
        dragX = sdrag._x;
        dragY = sdrag._y;
        if (dragX || dragY) {
          let { left, top, width, height } = src.select;
          let sori = src.scales[xKeySrc].ori;
          let sPosToVal = src.posToVal;
          let sOff, sDim, sc, a4, b4;
          let matchingX = xKey != null && matchXKeys(xKey, xKeySrc);
          let matchingY = yKey != null && matchYKeys(yKey, yKeySrc);
          if (matchingX && dragX) {
            if (sori == 0) {
              sOff = left;
              sDim = width;
            } else {
              sOff = top;
              sDim = height;
            }
            sc = scales[xKey];
            a4 = valToPosX(sPosToVal(sOff, xKeySrc), sc, xDim, 0);
            b4 = valToPosX(sPosToVal(sOff + sDim, xKeySrc), sc, xDim, 0);
            setSelX(min(a4, b4), abs(b4 - a4));
          } else
            setSelX(0, xDim);
          if (matchingY && dragY) {
            if (sori == 1) {
              sOff = left;
              sDim = width;
            } else {
              sOff = top;
              sDim = height;
            }
            sc = scales[yKey];
            a4 = valToPosY(sPosToVal(sOff, yKeySrc), sc, yDim, 0);
            b4 = valToPosY(sPosToVal(sOff + sDim, yKeySrc), sc, yDim, 0);
            setSelY(min(a4, b4), abs(b4 - a4));
          } else
            setSelY(0, yDim);
        } else
          hideSelect();
      } else {
        let rawDX = abs(rawMouseLeft1 - rawMouseLeft0);
        let rawDY = abs(rawMouseTop1 - rawMouseTop0);
        if (scaleX.ori == 1) {
          let _rawDX = rawDX;
          rawDX = rawDY;
          rawDY = _rawDX;
        }
        dragX = drag.x && rawDX >= drag.dist;
        dragY = drag.y && rawDY >= drag.dist;
        let uni = drag.uni;
        if (uni != null) {
          if (dragX && dragY) {
            dragX = rawDX >= uni;
            dragY = rawDY >= uni;
            if (!dragX && !dragY) {
              if (rawDY > rawDX)
                dragY = true;
              else
                dragX = true;
            }
          }
        } else if (drag.x && drag.y && (dragX || dragY))
          dragX = dragY = true;
        let p0, p1;
        if (dragX) {
          if (scaleX.ori == 0) {
            p0 = mouseLeft0;
            p1 = mouseLeft1;
          } else {
            p0 = mouseTop0;
            p1 = mouseTop1;
          }
          setSelX(min(p0, p1), abs(p1 - p0));
          if (!dragY)
            setSelY(0, yDim);
        }
        if (dragY) {
          if (scaleX.ori == 1) {
            p0 = mouseLeft0;
            p1 = mouseLeft1;
          } else {
            p0 = mouseTop0;
            p1 = mouseTop1;
          }
          setSelY(min(p0, p1), abs(p1 - p0));
          if (!dragX)
            setSelX(0, xDim);
        }
        if (!dragX && !dragY) {
          setSelX(0, 0);
          setSelY(0, 0);
        }
      }
    }
    drag._x = dragX;
    drag._y = dragY;
    if (src == null) {
      if (_pub) {
        if (syncKey != null) {
          let [xSyncKey, ySyncKey] = syncOpts.scales;
          syncOpts.values[0] = xSyncKey != null ? posToVal(scaleX.ori == 0 ? mouseLeft1 : mouseTop1, xSyncKey) : null;
          syncOpts.values[1] = ySyncKey != null ? posToVal(scaleX.ori == 1 ? mouseLeft1 : mouseTop1, ySyncKey) : null;
        }
        pubSync(mousemove, self, mouseLeft1, mouseTop1, plotWidCss, plotHgtCss, idx);
      }
      if (cursorFocus) {
        let shouldPub = _pub && syncOpts.setSeries;
        let p5 = focus.prox;
        if (focusedSeries == null) {
          if (closestDist <= p5)
            setSeries(closestSeries, FOCUS_TRUE, true, shouldPub);
        } else {
          if (closestDist > p5)
            setSeries(null, FOCUS_TRUE, true, shouldPub);
          else if (closestSeries != focusedSeries)
            setSeries(closestSeries, FOCUS_TRUE, true, shouldPub);
        }
      }
    }
    if (shouldSetLegend) {
      legend.idx = idx;
      setLegend();
    }
    _fire !== false && fire("setCursor");
  }
  let rect2 = null;
  Object.defineProperty(self, "rect", {
    get() {
      if (rect2 == null)
        syncRect(false);
      return rect2;
    }
  });
  function syncRect(defer = false) {
    if (defer)
      rect2 = null;
    else {
      rect2 = over.getBoundingClientRect();
      fire("syncRect", rect2);
    }
  }
  function mouseMove(e4, src, _l, _t, _w, _h, _i) {
    if (cursor._lock)
      return;
    if (dragging && e4 != null && e4.movementX == 0 && e4.movementY == 0)
      return;
    cacheMouse(e4, src, _l, _t, _w, _h, _i, false, e4 != null);
    if (e4 != null)
      updateCursor(null, true, true);
    else
      updateCursor(src, true, false);
  }
  function cacheMouse(e4, src, _l, _t, _w, _h, _i, initial, snap) {
    if (rect2 == null)
      syncRect(false);
    setCursorEvent(e4);
    if (e4 != null) {
      _l = e4.clientX - rect2.left;
      _t = e4.clientY - rect2.top;
    } else {
      if (_l < 0 || _t < 0) {
        mouseLeft1 = -10;
        mouseTop1 = -10;
        return;
      }
      let [xKey, yKey] = syncOpts.scales;
      let syncOptsSrc = src.cursor.sync;
      let [xValSrc, yValSrc] = syncOptsSrc.values;
      let [xKeySrc, yKeySrc] = syncOptsSrc.scales;
      let [matchXKeys, matchYKeys] = syncOpts.match;
      let rotSrc = src.axes[0].side % 2 == 1;
      let xDim = scaleX.ori == 0 ? plotWidCss : plotHgtCss, yDim = scaleX.ori == 1 ? plotWidCss : plotHgtCss, _xDim = rotSrc ? _h : _w, _yDim = rotSrc ? _w : _h, _xPos = rotSrc ? _t : _l, _yPos = rotSrc ? _l : _t;
      if (xKeySrc != null)
        _l = matchXKeys(xKey, xKeySrc) ? getPos(xValSrc, scales[xKey], xDim, 0) : -10;
      else
        _l = xDim * (_xPos / _xDim);
      if (yKeySrc != null)
        _t = matchYKeys(yKey, yKeySrc) ? getPos(yValSrc, scales[yKey], yDim, 0) : -10;
      else
        _t = yDim * (_yPos / _yDim);
      if (scaleX.ori == 1) {
        let __l = _l;
        _l = _t;
        _t = __l;
      }
    }
    if (snap && (src == null || src.cursor.event.type == mousemove)) {
      if (_l <= 1 || _l >= plotWidCss - 1)
        _l = incrRound(_l, plotWidCss);
      if (_t <= 1 || _t >= plotHgtCss - 1)
        _t = incrRound(_t, plotHgtCss);
    }
    if (initial) {
      rawMouseLeft0 = _l;
      rawMouseTop0 = _t;
      [mouseLeft0, mouseTop0] = cursor.move(self, _l, _t);
    } else {
      mouseLeft1 = _l;
      mouseTop1 = _t;
    }
  }
  const _hideProps = {
    width: 0,
    height: 0,
    left: 0,
    top: 0
  };
  function hideSelect() {
    setSelect(_hideProps, false);
  }
  let downSelectLeft;
  let downSelectTop;
  let downSelectWidth;
  let downSelectHeight;
  function mouseDown(e4, src, _l, _t, _w, _h, _i) {
    dragging = true;
    dragX = dragY = drag._x = drag._y = false;
    cacheMouse(e4, src, _l, _t, _w, _h, _i, true, false);
    if (e4 != null) {
      onMouse(mouseup, doc, mouseUp, false);
      pubSync(mousedown, self, mouseLeft0, mouseTop0, plotWidCss, plotHgtCss, null);
    }
    let { left, top, width, height } = select;
    downSelectLeft = left;
    downSelectTop = top;
    downSelectWidth = width;
    downSelectHeight = height;
  }
  function mouseUp(e4, src, _l, _t, _w, _h, _i) {
    dragging = drag._x = drag._y = false;
    cacheMouse(e4, src, _l, _t, _w, _h, _i, false, true);
    let { left, top, width, height } = select;
    let hasSelect = width > 0 || height > 0;
    let chgSelect = downSelectLeft != left || downSelectTop != top || downSelectWidth != width || downSelectHeight != height;
    hasSelect && chgSelect && setSelect(select);
    if (drag.setScale && hasSelect && chgSelect) {
      let xOff = left, xDim = width, yOff = top, yDim = height;
      if (scaleX.ori == 1) {
        xOff = top, xDim = height, yOff = left, yDim = width;
      }
      if (dragX) {
        _setScale(
          xScaleKey,
          posToVal(xOff, xScaleKey),
          posToVal(xOff + xDim, xScaleKey)
        );
      }
      if (dragY) {
        for (let k4 in scales) {
          let sc = scales[k4];
          if (k4 != xScaleKey && sc.from == null && sc.min != inf) {
            _setScale(
              k4,
              posToVal(yOff + yDim, k4),
              posToVal(yOff, k4)
            );
          }
        }
      }
      hideSelect();
    } else if (cursor.lock) {
      cursor._lock = !cursor._lock;
      updateCursor(src, true, e4 != null);
    }
    if (e4 != null) {
      offMouse(mouseup, doc);
      pubSync(mouseup, self, mouseLeft1, mouseTop1, plotWidCss, plotHgtCss, null);
    }
  }
  function mouseLeave(e4, src, _l, _t, _w, _h, _i) {
    if (cursor._lock)
      return;
    setCursorEvent(e4);
    let _dragging = dragging;
    if (dragging) {
      let snapH = true;
      let snapV = true;
      let snapProx = 10;
      let dragH, dragV;
      if (scaleX.ori == 0) {
        dragH = dragX;
        dragV = dragY;
      } else {
        dragH = dragY;
        dragV = dragX;
      }
      if (dragH && dragV) {
        snapH = mouseLeft1 <= snapProx || mouseLeft1 >= plotWidCss - snapProx;
        snapV = mouseTop1 <= snapProx || mouseTop1 >= plotHgtCss - snapProx;
      }
      if (dragH && snapH)
        mouseLeft1 = mouseLeft1 < mouseLeft0 ? 0 : plotWidCss;
      if (dragV && snapV)
        mouseTop1 = mouseTop1 < mouseTop0 ? 0 : plotHgtCss;
      updateCursor(null, true, true);
      dragging = false;
    }
    mouseLeft1 = -10;
    mouseTop1 = -10;
    activeIdxs.fill(null);
    updateCursor(null, true, true);
    if (_dragging)
      dragging = _dragging;
  }
  function dblClick(e4, src, _l, _t, _w, _h, _i) {
    if (cursor._lock)
      return;
    setCursorEvent(e4);
    autoScaleX();
    hideSelect();
    if (e4 != null)
      pubSync(dblclick, self, mouseLeft1, mouseTop1, plotWidCss, plotHgtCss, null);
  }
  function syncPxRatio() {
    axes.forEach(syncFontSize);
    _setSize(self.width, self.height, true);
  }
  on(dppxchange, win, syncPxRatio);
  const events = {};
  events.mousedown = mouseDown;
  events.mousemove = mouseMove;
  events.mouseup = mouseUp;
  events.dblclick = dblClick;
  events["setSeries"] = (e4, src, idx, opts2) => {
    let seriesIdxMatcher2 = syncOpts.match[2];
    idx = seriesIdxMatcher2(self, src, idx);
    idx != -1 && setSeries(idx, opts2, true, false);
  };
  if (showCursor) {
    onMouse(mousedown, over, mouseDown);
    onMouse(mousemove, over, mouseMove);
    onMouse(mouseenter, over, (e4) => {
      setCursorEvent(e4);
      syncRect(false);
    });
    onMouse(mouseleave, over, mouseLeave);
    onMouse(dblclick, over, dblClick);
    cursorPlots.add(self);
    self.syncRect = syncRect;
  }
  const hooks = self.hooks = opts.hooks || {};
  function fire(evName, a1, a22) {
    if (deferHooks)
      hooksQueue.push([evName, a1, a22]);
    else {
      if (evName in hooks) {
        hooks[evName].forEach((fn) => {
          fn.call(null, self, a1, a22);
        });
      }
    }
  }
  (opts.plugins || []).forEach((p5) => {
    for (let evName in p5.hooks)
      hooks[evName] = (hooks[evName] || []).concat(p5.hooks[evName]);
  });
  const seriesIdxMatcher = (self2, src, srcSeriesIdx) => srcSeriesIdx;
  const syncOpts = assign({
    key: null,
    setSeries: false,
    filters: {
      pub: retTrue,
      sub: retTrue
    },
    scales: [xScaleKey, series[1] ? series[1].scale : null],
    match: [retEq, retEq, seriesIdxMatcher],
    values: [null, null]
  }, cursor.sync);
  if (syncOpts.match.length == 2)
    syncOpts.match.push(seriesIdxMatcher);
  cursor.sync = syncOpts;
  const syncKey = syncOpts.key;
  const sync = _sync(syncKey);
  function pubSync(type, src, x3, y5, w4, h5, i4) {
    if (syncOpts.filters.pub(type, src, x3, y5, w4, h5, i4))
      sync.pub(type, src, x3, y5, w4, h5, i4);
  }
  sync.sub(self);
  function pub(type, src, x3, y5, w4, h5, i4) {
    if (syncOpts.filters.sub(type, src, x3, y5, w4, h5, i4))
      events[type](null, src, x3, y5, w4, h5, i4);
  }
  self.pub = pub;
  function destroy() {
    sync.unsub(self);
    cursorPlots.delete(self);
    mouseListeners.clear();
    off(dppxchange, win, syncPxRatio);
    root.remove();
    legendTable?.remove();
    fire("destroy");
  }
  self.destroy = destroy;
  function _init() {
    fire("init", opts, data);
    setData(data || opts.data, false);
    if (pendScales[xScaleKey])
      setScale(xScaleKey, pendScales[xScaleKey]);
    else
      autoScaleX();
    shouldSetSelect = select.show && (select.width > 0 || select.height > 0);
    shouldSetCursor = shouldSetLegend = true;
    _setSize(opts.width, opts.height);
  }
  series.forEach(initSeries);
  axes.forEach(initAxis);
  if (then) {
    if (then instanceof HTMLElement) {
      then.appendChild(root);
      _init();
    } else
      then(self, _init);
  } else
    _init();
  return self;
}
uPlot.assign = assign;
uPlot.fmtNum = fmtNum;
uPlot.rangeNum = rangeNum;
uPlot.rangeLog = rangeLog;
uPlot.rangeAsinh = rangeAsinh;
uPlot.orient = orient;
uPlot.pxRatio = pxRatio;
{
  uPlot.join = join;
}
{
  uPlot.fmtDate = fmtDate;
  uPlot.tzDate = tzDate;
}
uPlot.sync = _sync;
{
  uPlot.addGap = addGap;
  uPlot.clipGaps = clipGaps;
  let paths = uPlot.paths = {
    points
  };
  paths.linear = linear;
  paths.stepped = stepped;
  paths.bars = bars;
  paths.spline = monotoneCubic;
}

// src/chart.tsx
var LEAST_SECONDS = 60;
var COLOURS2 = ["--bar", "--wait", "--good", "--other", "--bad", "--muted"];
var POINT_NAMES = { time: "Time", elapsed: "Since the start", log: "Up to", nodes: "Nodes" };
var MINUTE = 60;
var HOUR = 3600;
var DAY = 86400;
var ELAPSED_STEPS = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((n3) => n3 * MINUTE), ...[1, 2, 3, 6, 12].map((n3) => n3 * HOUR), ...[1, 2, 7, 14, 28, 91, 182, 365].map((n3) => n3 * DAY)];
var LOG_STEPS = [1, 10, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY];
function pointText(axis, point) {
  if (axis === "time") return time(new Date(point * 1e3).toISOString());
  return axis === "nodes" ? String(point) : duration(point);
}
function Chart({ label, note, points: points2, series, unit, axis = "time", height = 200, steps = false, until: until2 }) {
  const place2 = A2(null);
  const plot = A2(null);
  const [isOpen, setOpen] = d2(false);
  const shape = series.map((one) => `${one.name} ${one.dashed ?? false}`).join("\n");
  const data = drawable(points2, series, axis, steps ? until2 : void 0);
  h2(() => {
    const box = place2.current;
    if (!box) return void 0;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const draw3 = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(series, unit, axis, box.clientWidth, height, steps), plot.current?.data ?? data, box);
    };
    draw3();
    const size = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height }));
    size.observe(box);
    dark.addEventListener("change", draw3);
    return () => {
      size.disconnect();
      dark.removeEventListener("change", draw3);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, unit, axis, height, steps]);
  h2(() => plot.current?.setData(data), [points2, series, until2]);
  return /* @__PURE__ */ u4("figure", { class: "chart", "aria-label": label, children: [
    /* @__PURE__ */ u4("figcaption", { children: label }),
    note ? /* @__PURE__ */ u4("p", { class: "muted", children: note }) : null,
    /* @__PURE__ */ u4("div", { ref: place2, "aria-hidden": "true" }),
    /* @__PURE__ */ u4("details", { onToggle: (event) => setOpen(event.currentTarget.open), children: [
      /* @__PURE__ */ u4("summary", { children: "As a table" }),
      isOpen ? /* @__PURE__ */ u4(
        Table,
        {
          label,
          rows: points2.map((point, row) => ({ point, row })),
          id: ({ row }) => String(row),
          columns: [
            { name: POINT_NAMES[axis], of: ({ point }) => pointText(axis, point) },
            ...series.map((one) => ({ name: `${one.name} (${unit})`, right: true, of: ({ row }) => figure(one.values[row] ?? null) }))
          ]
        }
      ) : null
    ] })
  ] });
}
function drawable(points2, series, axis, until2) {
  const last = points2.at(-1);
  if (last !== void 0 && until2 !== void 0 && until2 > last) return [[...points2, until2], ...series.map((one) => [...one.values, one.values.at(-1) ?? null])];
  if (last !== void 0 && points2.length === 1 && axis === "time") return [[last, last + LEAST_SECONDS], ...series.map((one) => [...one.values, null])];
  return [points2, ...series.map((one) => one.values)];
}
function figure(value) {
  return value === null ? "–" : trim(value, 2);
}
function options(series, unit, axis, width, height, steps) {
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(name).trim();
  const stepped2 = uPlot.paths.stepped?.({ align: 1 });
  const rule = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: `11px ${css("--font")}` };
  return {
    width,
    height,
    series: [
      { label: POINT_NAMES[axis], value: (_6, point) => point == null ? "–" : pointText(axis, point) },
      ...series.map((one, place2) => ({
        label: one.name,
        stroke: css(COLOURS2[place2 % COLOURS2.length] ?? "--bar"),
        width: 2,
        ...one.dashed || place2 >= COLOURS2.length ? { dash: [6, 4] } : {},
        ...steps && stepped2 ? { paths: stepped2 } : {},
        points: { show: one.values.length < 3 || axis === "nodes" },
        value: (_6, value) => value === null ? "–" : `${figure(value)} ${unit}`
      }))
    ],
    axes: [{ ...rule, ...pointAxis(axis) }, { ...rule, size: 56, values: (_6, ticks2) => ticks2.map((tick) => String(Number(tick.toPrecision(3)))) }],
    scales: { x: { time: axis === "time", distr: axis === "log" ? 3 : 1 }, y: { range: (_6, low, high) => [Math.min(0, low ?? 0), (high ?? 0) > 0 ? (high ?? 0) * 1.05 : 1] } },
    cursor: { points: { size: 6 } }
  };
}
function pointAxis(axis) {
  const values = (_6, ticks2) => ticks2.map((tick) => pointText(axis, tick));
  if (axis === "elapsed") return { values, incrs: ELAPSED_STEPS, space: 80 };
  if (axis === "log") return { values, filter: (_6, ticks2) => ticks2, splits: (plot) => LOG_STEPS.filter((step) => step >= (plot.scales["x"]?.min ?? 0) && step <= (plot.scales["x"]?.max ?? 0)) };
  return axis === "nodes" ? { values, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3] } : {};
}

// src/jobfile.ts
var MOST_COMBINATIONS = 1e4;
var HIDDEN = "***";
var PRIORITIES = /* @__PURE__ */ new Map([
  [250, "low"],
  [750, "normal"],
  [1500, "high"],
  [2500, "urgent"]
]);
function words(line2) {
  const found = [];
  let word = "";
  let isOpen = false;
  let quote = "";
  for (let i4 = 0; i4 < line2.length; i4 += 1) {
    const letter = line2.charAt(i4);
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && /["\\$`]/.test(line2.charAt(i4 + 1))) word += line2.charAt(i4 += 1);
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      isOpen = true;
    } else if (letter === "\\" && i4 + 1 < line2.length) {
      word += line2.charAt(i4 += 1);
      isOpen = true;
    } else if (/\s/.test(letter)) {
      if (isOpen) found.push(word);
      word = "";
      isOpen = false;
    } else {
      word += letter;
      isOpen = true;
    }
  }
  if (quote) throw new Error(`a quote ${quote} is not closed`);
  if (isOpen) found.push(word);
  return found;
}
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
function line(command) {
  return command.map(quoted).join(" ");
}
function requestOf(job) {
  const body = { command: job.command, gpu_count: job.gpu_count };
  const left = [];
  if (job.name) body.name = job.name;
  if (job.tenant_id !== "default") body.tenant_id = job.tenant_id;
  if (job.priority !== 750) body.priority = job.priority;
  if (job.gpu_models.length) body.gpu_models = job.gpu_models;
  if (job.gpu_memory_mb) body.gpu_memory_mb = job.gpu_memory_mb;
  if (job.cpu_cores) body.cpu_cores = job.cpu_cores;
  if (job.memory_mb) body.memory_mb = job.memory_mb;
  if (job.max_runtime_minutes) body.max_runtime_minutes = job.max_runtime_minutes;
  if (job.image) body.image = job.image;
  if (job.working_directory) body.working_directory = job.working_directory;
  if (job.runner && job.runner !== "process") body.runner = job.runner;
  if (job.pool === "online") body.pool = job.pool;
  if (!job.preemptible) body.preemptible = false;
  if (job.interactive) body.interactive = true;
  if (job.retries) body.retries = job.retries;
  if (job.output) body.output = job.output;
  if (job.array) body.array = `${job.array.tasks}${job.array.max_running ? `%${job.array.max_running}` : ""}`;
  if (job.members > 1) Object.assign(body, { members: job.members, gang_scheduling: true, gpu_count: job.gpu_count / job.members });
  const shown = Object.entries(job.environment).filter(([, value]) => value !== HIDDEN);
  if (shown.length) body.environment = Object.fromEntries(shown);
  if (shown.length < Object.keys(job.environment).length) left.push("hidden values of environment variables");
  if (job.dependencies.length) left.push("its dependencies");
  if (job.snapshot) left.push("its snapshot of the code");
  return { body, left };
}
function clock2(seconds) {
  const whole = Math.round(seconds);
  const two = (value) => String(value).padStart(2, "0");
  return `${two(Math.floor(whole / 3600))}:${two(Math.floor(whole % 3600 / 60))}:${two(whole % 60)}`;
}
function tgpuLine(body, params = {}) {
  const options2 = [];
  const add = (...parts) => options2.push(...parts.map(quoted));
  for (const [name, value] of Object.entries(body)) {
    if (value === null || value === void 0 || name === "command" || name === "gang_scheduling") continue;
    if (name === "gpu_count") add("-G", String(value));
    else if (name === "gpu_models") add("--gpu-model", value.join(","));
    else if (name === "gpu_model") add("--gpu-model", String(value));
    else if (name === "gpu_memory_mb") add("--gpu-memory", `${value}M`);
    else if (name === "max_runtime_minutes") add("-t", clock2(value * 60));
    else if (name === "max_runtime_seconds") add("-t", clock2(value));
    else if (name === "estimate_seconds") add("--estimate", clock2(value));
    else if (name === "cpu_cores") add("-c", String(value));
    else if (name === "memory_mb") add("-m", `${value}M`);
    else if (name === "name") add("-J", String(value));
    else if (name === "priority" && (typeof value === "string" || value > 10)) add("-p", PRIORITIES.get(value) ?? String(value));
    else if (name === "tenant_id") add("-T", String(value));
    else if (name === "image") add("--image", String(value));
    else if (name === "runner") add("--runner", String(value));
    else if (name === "working_directory") add("-D", String(value));
    else if (name === "output") add("-o", String(value));
    else if (name === "array" && typeof value === "string") add("-a", value);
    else if (name === "retries") add("--retries", String(value));
    else if (name === "members" && typeof value === "number") add("-N", String(value));
    else if (name === "min_members") add("--min-members", String(value));
    else if (name === "pool") add("--pool", String(value));
    else if (name === "topology") add("--topology", String(value));
    else if (name === "sweep") add("--sweep", String(value));
    else if (name === "environment") for (const [key, text] of Object.entries(value)) add("-e", `${key}=${text}`);
    else if (name === "hold" || name === "exclusive" || name === "contiguous" || name === "interactive") {
      if (value) add(`--${name}`);
    } else if (name === "preemptible") {
      if (!value) add("--no-preempt");
    } else return null;
  }
  for (const [name, values] of Object.entries(params)) add("--param", `${name}=${values.join(",")}`);
  return ["tgpu submit", ...options2, "--", line(body.command ?? [])].join(" ");
}
function jobFile(body) {
  return JSON.stringify(body, null, 2);
}
function pythonText(body, params = {}) {
  const { command, ...fields } = body;
  const arguments_ = Object.entries(fields).map(([name, value]) => `${name}=${pythonValue(value)}`);
  if (!Object.keys(params).length) {
    const given = [pythonValue(command ?? []), ...arguments_].map((text) => `    ${text},`).join("\n");
    return `from gpu_scheduler import Client

with Client() as client:
    job = client.submit(
${given.replaceAll(/^/gm, "    ")}
    )
    print(job.id)
`;
  }
  const loops = Object.entries(params).map(([key, values]) => `    ${pythonValue(key)}: ${pythonValue(values)},`);
  const filled = `[word.format(**values) for word in ${pythonValue(command ?? [])}]`;
  const rest = arguments_.filter((text) => !text.startsWith("sweep="));
  return [
    "from itertools import product",
    "from gpu_scheduler import Client",
    "",
    "params = {",
    ...loops,
    "}",
    "rows = [dict(zip(params, row)) for row in product(*params.values())]",
    "with Client() as client:",
    "    jobs = client.submit_many(",
    `        dict(command=${filled}, params=values, sweep=${pythonValue(fields.sweep || "my-sweep")}${rest.length ? `, ${rest.join(", ")}` : ""})`,
    "        for values in rows",
    "    )",
    "    print(jobs)",
    ""
  ].join("\n");
}
function pythonValue(value) {
  if (value === null || value === void 0) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${pythonValue(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}
function readParams(text) {
  const params = {};
  for (const row of text.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const match = /^([A-Za-z_]\w*)=(.+)$/.exec(row);
    const name = match?.[1];
    if (!name || !match[2]) throw new Error(`"${row}" is no parameter; write a name and values, as lr=0.1,0.01`);
    if (Object.keys(params).some((other) => other.toUpperCase() === name.toUpperCase())) throw new Error(`parameter "${name}" is there twice`);
    params[name] = match[2].split(",");
  }
  const combinations2 = Object.values(params).reduce((product, values) => product * values.length, 1);
  if (combinations2 > MOST_COMBINATIONS) throw new Error(`${combinations2} combinations; at most ${MOST_COMBINATIONS} are sent at once`);
  return params;
}
function combinations(params) {
  let rows = [{}];
  for (const [name, values] of Object.entries(params)) rows = rows.flatMap((row) => values.map((value) => ({ ...row, [name]: value })));
  return rows;
}
function filledIn(body, values, sweep) {
  const fill2 = (text) => text.replace(/\{([A-Za-z_]\w*)\}/g, (all, name2) => values[name2] ?? all);
  const label = Object.entries(values).map(([name2, value]) => `${name2}=${value}`).join(",");
  const name = body.name ? fill2(body.name) : "";
  const made = { ...body, name: (name && name !== body.name ? name : `${body.name ?? ""} ${label}`.trim()).slice(0, 256), params: values, sweep };
  if (body.command) made.command = body.command.map(fill2);
  if (body.output) made.output = fill2(body.output);
  if (body.working_directory) made.working_directory = fill2(body.working_directory);
  const variables = Object.entries(body.environment ?? {}).map(([key, text]) => [key, fill2(text)]);
  const own = Object.entries(values).map(([key, text]) => [`TGPU_PARAM_${key.toUpperCase()}`, text]);
  made.environment = Object.fromEntries([...variables, ...own, ["TGPU_SWEEP", sweep]]);
  return made;
}
function sweepName(given) {
  const stem = given.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z]+|[-.]+$/g, "");
  return `${stem || "sweep"}-${[...crypto.getRandomValues(new Uint8Array(3))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`.slice(-64);
}

// src/ansi.ts
var AnsiReader = class {
  colour = "";
  bold = false;
  // Reads one line; colours go on into the next.
  line(raw) {
    const kept = raw.replace(/\r+$/, "");
    const line2 = kept.slice(kept.lastIndexOf("\r") + 1);
    const pieces = [];
    let at = 0;
    const sequences = /\x1b(?:\[([0-9;:?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[@-Z\\^_]|[ -/]+[0-~]|$)/g;
    for (let found = sequences.exec(line2); found; found = sequences.exec(line2)) {
      this.add(pieces, line2.slice(at, found.index));
      at = found.index + found[0].length;
      if (found[2] === "m") this.paint(found[1] ?? "");
      if (found[0] === "") break;
    }
    this.add(pieces, line2.slice(at));
    return pieces;
  }
  add(pieces, text) {
    const visible = text.replace(/[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "");
    if (visible) pieces.push({ text: visible, style: `${this.colour}${this.bold ? " ansi-bold" : ""}`.trim() });
  }
  paint(codes) {
    const numbers = codes.split(/[;:]/).map(Number);
    for (let i4 = 0; i4 < numbers.length; i4 += 1) {
      const code = numbers[i4] ?? 0;
      if (code === 0) {
        this.colour = "";
        this.bold = false;
      } else if (code === 1) this.bold = true;
      else if (code === 22) this.bold = false;
      else if (code >= 30 && code <= 37) this.colour = `ansi-${code - 30}`;
      else if (code >= 90 && code <= 97) this.colour = `ansi-${code - 90}`;
      else if (code === 39) this.colour = "";
      else if (code === 38 && numbers[i4 + 1] === 5) {
        const index = numbers[i4 + 2] ?? 0;
        this.colour = index < 16 ? `ansi-${index % 8}` : `ansi-${nearest(index)}`;
        i4 += 2;
      } else if (code === 38) i4 += 4;
      else if (code === 48) i4 += numbers[i4 + 1] === 5 ? 2 : 4;
    }
  }
};
function nearest(index) {
  if (index >= 232) return index < 244 ? 0 : 7;
  const cube = index - 16;
  const on2 = (part) => part >= 3 ? 1 : 0;
  return on2(Math.floor(cube / 36)) + 2 * on2(Math.floor(cube / 6) % 6) + 4 * on2(cube % 6);
}

// src/log.tsx
var TAIL_BYTES = 512 * 1024;
var MOST_LINES = 2e4;
var MOST_LINE_CHARS = 2e4;
var LINE_PX = 18;
var RETRY_MS2 = 3e3;
var PAINT_MS = 150;
function useLog(id, query2) {
  const [log, setLog] = d2({ lines: [], dropped: false, problem: "", ended: false });
  h2(() => {
    const stop = new AbortController();
    void follow(id, query2, stop.signal, setLog).catch(() => void 0);
    return () => stop.abort();
  }, [id, JSON.stringify(query2)]);
  return log;
}
async function follow(id, query2, signal, show) {
  while (!signal.aborted) {
    let lines = [];
    let dropped = false;
    let paintTimer = 0;
    const paint = (problem = "", ended = false) => {
      clearTimeout(paintTimer);
      paintTimer = 0;
      if (!signal.aborted) show({ lines: [...lines], dropped, problem, ended });
    };
    try {
      const response = await fetch(address("/jobs/{job_id}/logs", { job_id: id }, { ...query2, offset: -TAIL_BYTES, follow: 1 }), { signal });
      if (!response.ok || !response.body) {
        paint((await asError(response)).message);
        if (response.status < 500 && response.status !== 429) return;
      } else {
        const ansi = new AnsiReader();
        let rest = "";
        let bytes = 0;
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          bytes += part.value.length;
          dropped ||= bytes >= TAIL_BYTES;
          const split = (rest + part.value).split("\n");
          rest = (split.pop() ?? "").slice(-MOST_LINE_CHARS);
          for (const line2 of split) lines.push(ansi.line(line2.slice(0, MOST_LINE_CHARS)));
          if (lines.length > MOST_LINES) {
            lines = lines.slice(-MOST_LINES);
            dropped = true;
          }
          if (!paintTimer) paintTimer = window.setTimeout(paint, PAINT_MS);
        }
        if (rest) lines.push(ansi.line(rest));
        paint("", true);
        return;
      }
    } catch (error) {
      if (signal.aborted) return;
      paint(error instanceof Error ? `The log was interrupted: ${error.message}` : "The log was interrupted.");
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS2));
  }
}
function LogView({ id, attempt: attempt2, member, task }) {
  const query2 = { attempt: attempt2, member, task };
  const log = useLog(id, query2);
  const [words2, setWords] = d2("");
  const [follows, setFollows] = d2(true);
  const [top, setTop] = d2(0);
  const [height, setHeight] = d2(400);
  const box = A2(null);
  const space = A2(null);
  const body = A2(null);
  const needle = words2.toLowerCase();
  const lines = T2(
    () => needle ? log.lines.filter((line2) => line2.map((piece) => piece.text).join("").toLowerCase().includes(needle)) : log.lines,
    [log.lines, needle]
  );
  const first = Math.max(0, Math.floor(top / LINE_PX) - 10);
  const shown = lines.slice(first, first + Math.ceil(height / LINE_PX) + 20);
  h2(() => {
    const element = box.current;
    if (!element) return void 0;
    const size = new ResizeObserver(() => setHeight(element.clientHeight));
    size.observe(element);
    return () => size.disconnect();
  }, []);
  h2(() => {
    if (space.current) space.current.style.height = `${lines.length * LINE_PX}px`;
    if (body.current) body.current.style.transform = `translateY(${first * LINE_PX}px)`;
    if (follows && box.current) box.current.scrollTop = lines.length * LINE_PX;
  }, [lines, first, follows]);
  return /* @__PURE__ */ u4("section", { class: "card log", "aria-label": "Log", children: [
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      /* @__PURE__ */ u4("h2", { children: "Log" }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Search",
        /* @__PURE__ */ u4("input", { type: "search", value: words2, onInput: (event) => setWords(event.currentTarget.value), placeholder: "lines that contain" })
      ] }),
      needle ? /* @__PURE__ */ u4("span", { class: "muted", children: `${count(lines.length)} of ${count(log.lines.length)} lines` }) : null,
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        /* @__PURE__ */ u4("input", { type: "checkbox", checked: follows, onChange: (event) => setFollows(event.currentTarget.checked) }),
        " Follow"
      ] }),
      /* @__PURE__ */ u4("a", { class: "button", href: address("/jobs/{job_id}/logs", { job_id: id }, query2), download: `${id}.log`, children: "Download" })
    ] }),
    log.dropped ? /* @__PURE__ */ u4("p", { class: "note", children: "This is the end of a long log. The download has all of it." }) : null,
    log.problem ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: log.problem }) : null,
    /* @__PURE__ */ u4(
      "div",
      {
        class: "log-box",
        ref: box,
        tabIndex: 0,
        role: "log",
        "aria-live": "off",
        "aria-label": "Output of the job",
        onScroll: (event) => {
          const element = event.currentTarget;
          setTop(element.scrollTop);
          setFollows(element.scrollTop + element.clientHeight >= element.scrollHeight - LINE_PX);
        },
        children: [
          /* @__PURE__ */ u4("div", { class: "log-space", ref: space, children: /* @__PURE__ */ u4("div", { class: "log-lines", ref: body, children: shown.map((line2, place2) => /* @__PURE__ */ u4("div", { class: "log-line", children: line2.map((piece, index) => /* @__PURE__ */ u4("span", { class: piece.style, children: piece.text }, index)) }, first + place2)) }) }),
          lines.length === 0 ? /* @__PURE__ */ u4("p", { class: "muted", children: needle ? "No line contains that." : log.ended ? "The job has written nothing." : "Nothing written yet." }) : null
        ]
      }
    )
  ] });
}

// src/job.tsx
var ENDED = /* @__PURE__ */ new Set(["completed", "failed", "cancelled"]);
function JobPage({ id }) {
  const path = { job_id: id };
  const found = useLive((signal) => call("GET /jobs/{job_id}", { path, signal }), 2e3, [id]);
  const job = found.data;
  const isOwn = job !== null && !job.redacted;
  const isOver = job !== null && ENDED.has(job.state);
  const why = useLive(async (signal) => isOwn && !isOver ? call("GET /jobs/{job_id}/explain", { path, signal }) : null, 3e3, [id, isOwn, isOver, job?.state]);
  const attempts = useLive(async (signal) => isOwn ? call("GET /jobs/{job_id}/attempts", { path, signal }) : null, isOver ? 0 : 4e3, [id, isOwn, job?.state, job?.attempt]);
  if (!job) return found.error ? /* @__PURE__ */ u4(Problem, { error: found.error }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" });
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("p", { class: "crumbs", children: [
      /* @__PURE__ */ u4("a", { href: "#/jobs", children: "Queue" }),
      " / ",
      job.id
    ] }),
    /* @__PURE__ */ u4("div", { class: "title-row", children: [
      /* @__PURE__ */ u4("h1", { children: [
        job.name || job.id,
        " ",
        /* @__PURE__ */ u4(State, { state: job.hold && job.state === "pending" ? "held" : job.state })
      ] }),
      isOwn ? /* @__PURE__ */ u4(Actions, { job, refresh: found.refresh }) : null
    ] }),
    /* @__PURE__ */ u4(Problem, { error: found.error }),
    job.redacted ? /* @__PURE__ */ u4("p", { class: "note", children: [
      "This is a job of ",
      job.user,
      ": only its size, its place and its times are shown."
    ] }) : null,
    why.data && why.data.state !== "running" ? /* @__PURE__ */ u4(Why, { why: why.data }) : job.reason ? /* @__PURE__ */ u4("p", { class: "note", children: job.reason }) : null,
    /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Facts", children: [
      /* @__PURE__ */ u4(Facts, { of: factsOf(job, attempts.data) }),
      job.command.length ? /* @__PURE__ */ u4(Code, { text: line(job.command) }) : null
    ] }),
    job.array ? /* @__PURE__ */ u4(Tasks, { job }) : null,
    isOwn && job.attempt > 0 && !job.array ? /* @__PURE__ */ u4(JobLog, { job, attempts: attempts.data?.attempts ?? [] }) : null,
    isOwn && job.attempt > 0 && !job.array ? /* @__PURE__ */ u4(Readings, { job }) : null,
    attempts.data?.attempts.length ? /* @__PURE__ */ u4(Attempts, { attempts: attempts.data.attempts }) : null,
    isOwn ? /* @__PURE__ */ u4(Surroundings, { job }) : null
  ] });
}
function spent(list) {
  const hours = (list?.attempts ?? []).reduce((sum, one) => sum + one.gpu_hours, 0);
  const cost = (list?.attempts ?? []).reduce((sum, one) => sum + (one.cost ?? 0), 0);
  return [
    ["GPU-hours", hours ? trim(hours, hours < 1 ? 4 : 2) : ""],
    ["Cost of GPUs", cost ? `${trim(cost, cost < 1 ? 4 : 2)} ${list?.currency ?? ""}` : ""]
  ];
}
function factsOf(job, attempts) {
  const limit = job.time_limit_minutes;
  const ran = job.started_at && job.state !== "pending" ? since(job.started_at, job.ended_at ? Date.parse(job.ended_at) : Date.now()) : "";
  return [
    ["Job", job.id],
    ["User", /* @__PURE__ */ u4(Who, { name: job.user })],
    ["Tenant", job.tenant_id],
    ["GPUs", `${trim(job.gpu_count)}${job.members > 1 ? ` in ${plural(job.members, "member")}` : ""}${job.gpu_models.length ? `, ${job.gpu_models.join(" or ")}` : ""}`],
    ["GPU memory", job.gpu_memory_mb ? memory(job.gpu_memory_mb) : ""],
    ["CPUs and memory", [job.cpu_cores ? plural(job.cpu_cores, "core") : "", job.memory_mb ? memory(job.memory_mb) : ""].filter(Boolean).join(", ")],
    ["Priority", job.redacted ? "" : `${job.priority}, ${job.pool}${job.preemptible ? ", preemptible" : ""}`],
    ["Submitted", time(job.submitted_at)],
    ["Started", job.started_at ? time(job.started_at) : ""],
    ["Ended", job.ended_at ? time(job.ended_at) : ""],
    ["Ran for", ran],
    ["Expected end", job.expected_end ? `${time(job.expected_end)} (${until(job.expected_end)})` : ""],
    ["Time limit", limit ? duration(limit * 60) : ""],
    ["Exit", exitText(job)],
    ["Attempts", job.attempt > 1 ? `${job.attempt}, ${plural(job.preemptions, "preemption")}` : ""],
    ["Where", job.allocation.map((place2) => /* @__PURE__ */ u4("span", { class: "mono", children: `${place2.node}[${place2.gpus.map((gpu) => gpu.share < 1 ? `${gpu.index} at ${Math.round(gpu.share * 100)} %` : gpu.index).join(",")}] ` }, `${place2.node} ${place2.member} ${place2.task}`))],
    ...measured(job.measured),
    ["Deadline", job.deadline ? time(job.deadline) : ""],
    ["Not before", job.begin_at ? time(job.begin_at) : ""],
    ["After", job.dependencies.length ? job.dependencies.map((one) => /* @__PURE__ */ u4("span", { children: [
      one.type,
      " ",
      /* @__PURE__ */ u4(JobLink, { id: one.job_id }),
      " "
    ] }, one.job_id)) : ""],
    ["Sweep", job.sweep],
    ...spent(attempts),
    ["Image", job.image],
    ["Attach", job.attach.length ? job.attach.join(" ") : ""]
  ];
}
function measured(measure) {
  if (!measure) return [];
  return [
    ["GPU utilisation", measure.utilisation_percent === null ? "" : `${measure.utilisation_percent} %, peak ${measure.peak_utilisation_percent ?? 0} %`],
    ["Peak GPU memory", memory(measure.peak_memory_mb)],
    ["Energy", measure.energy_wh === null ? "" : `${trim(measure.energy_wh, 1)} Wh`],
    ["Warning", measure.warning]
  ];
}
function exitText(job) {
  if (job.signal) return `signal ${job.signal}`;
  return job.exit_code === null ? "" : `code ${job.exit_code}`;
}
function Actions({ job, refresh }) {
  const possible = ENDED.has(job.state) ? job.state === "completed" ? [] : ["retry"] : job.state === "pending" ? [job.hold ? "release" : "hold", "priority", "cancel"] : ["cancel"];
  return /* @__PURE__ */ u4("div", { class: "buttons", children: [
    possible.map((action) => /* @__PURE__ */ u4("button", { type: "button", class: action === "cancel" ? "danger" : "", onClick: () => void act(action, [job.id], refresh, job.priority), children: action }, action)),
    /* @__PURE__ */ u4("a", { class: "button", href: `#/submit/${encodeURIComponent(job.id)}`, children: "Submit again" }),
    job.state === "pending" ? /* @__PURE__ */ u4("a", { class: "button", href: `#/plan/${encodeURIComponent(job.id)}`, children: "Who is before it" }) : null
  ] });
}
function Why({ why }) {
  return /* @__PURE__ */ u4("section", { class: "card why", "aria-label": "Why it waits", children: [
    /* @__PURE__ */ u4("h2", { children: "Why it waits" }),
    /* @__PURE__ */ u4("p", { children: why.reason }),
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["Place in the queue", why.position],
          ["Expected start", why.expected_start ? `${time(why.expected_start)} (${until(why.expected_start)})` : why.start_unknown ? `unknown: ${why.start_unknown}` : ""],
          ["Four in five start", why.expected_start_earliest && why.expected_start_latest && !isNarrow(why.expected_start_earliest, why.expected_start_latest) ? `between ${time(why.expected_start_earliest)} and ${time(why.expected_start_latest)}` : ""],
          ["After the end of", why.expected_start_after ? /* @__PURE__ */ u4("span", { children: [
            /* @__PURE__ */ u4(JobLink, { id: why.expected_start_after }),
            " (",
            why.expected_start_basis,
            ")"
          ] }) : ""],
          ["At the latest, by time limits", why.expected_start_limit ? time(why.expected_start_limit) : ""],
          ["Expected end", why.expected_end ? time(why.expected_end) : why.end_unknown ? `unknown: ${why.end_unknown}` : ""],
          ["Based on", why.basis]
        ]
      }
    )
  ] });
}
function JobLog({ job, attempts }) {
  const [attempt2, setAttempt] = d2(0);
  const [member, setMember] = d2(0);
  h2(() => setAttempt(0), [job.attempt]);
  return /* @__PURE__ */ u4(S, { children: [
    attempts.length > 1 || job.members > 1 ? /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      attempts.length > 1 ? /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Attempt",
        /* @__PURE__ */ u4("select", { value: attempt2, onChange: (event) => setAttempt(Number(event.currentTarget.value)), children: [
          /* @__PURE__ */ u4("option", { value: 0, children: "last" }),
          attempts.map((one) => /* @__PURE__ */ u4("option", { value: one.attempt, children: one.attempt }, one.attempt))
        ] })
      ] }) : null,
      job.members > 1 ? /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Member",
        /* @__PURE__ */ u4("input", { type: "number", min: 0, max: job.members - 1, value: member, onInput: (event) => setMember(Number(event.currentTarget.value) || 0) })
      ] }) : null
    ] }) : null,
    /* @__PURE__ */ k(LogView, { id: job.id, ...attempt2 ? { attempt: attempt2 } : {}, ...member ? { member } : {}, key: `${job.attempt} ${attempt2} ${member}` })
  ] });
}
function Attempts({ attempts }) {
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Attempts", children: [
    /* @__PURE__ */ u4("h2", { children: "Attempts" }),
    /* @__PURE__ */ u4(
      Table,
      {
        label: "Attempts",
        rows: attempts,
        id: (one) => one.id,
        columns: [
          { name: "Attempt", of: (one) => one.task === null ? one.attempt : `${one.task}.${one.attempt}` },
          { name: "State", of: (one) => /* @__PURE__ */ u4(State, { state: one.state }) },
          { name: "Started", of: (one) => time(one.started_at) },
          { name: "Ran for", right: true, of: (one) => since(one.started_at, one.ended_at ? Date.parse(one.ended_at) : Date.now()) },
          { name: "Exit", of: exitText },
          { name: "Where", of: (one) => /* @__PURE__ */ u4("span", { class: "mono", children: one.allocation.map((place2) => `${place2.node}[${place2.gpus.map((gpu) => gpu.index).join(",")}]`).join(" ") }) },
          { name: "Busy", right: true, of: (one) => one.measured?.utilisation_percent == null ? "–" : `${one.measured.utilisation_percent} %` },
          { name: "Detail", grow: true, of: (one) => one.detail }
        ]
      }
    )
  ] });
}
var QUANTITIES = [
  { name: "utilisation_percent", label: "GPU utilisation", unit: "%" },
  { name: "memory_used_mb", label: "GPU memory in use", unit: "MB" },
  { name: "power_watts", label: "Power", unit: "W" },
  { name: "temperature_c", label: "Temperature", unit: "°C" }
];
var MOST_CURVES = 6;
function Readings({ job }) {
  const found = useLive((signal) => call("GET /jobs/{job_id}/readings", { path: { job_id: job.id }, signal }), ENDED.has(job.state) ? 0 : 5e3, [job.id, job.state, job.attempt]);
  const { data } = found;
  const charts = T2(() => {
    if (!data?.start) return [];
    const begin = Date.parse(data.start) / 1e3;
    const steps = Math.max(0, ...data.gpus.map((gpu) => gpu.utilisation_percent.length));
    const seconds = Array.from({ length: steps }, (_6, step) => begin + step * data.step_seconds);
    return QUANTITIES.map((quantity) => ({
      ...quantity,
      seconds,
      series: data.gpus.slice(0, MOST_CURVES).map((gpu) => ({ name: `${gpu.node}:${gpu.index}`, values: seconds.map((_6, step) => gpu[quantity.name][step] ?? null) }))
    })).filter((chart) => chart.series.some((one) => one.values.some((value) => value !== null && value > 0)));
  }, [data]);
  if (!data || !charts.length) return null;
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "GPU readings", children: [
    /* @__PURE__ */ u4("h2", { children: "GPUs from start to end" }),
    data.gpus.length > MOST_CURVES ? /* @__PURE__ */ u4("p", { class: "note", children: `The first ${MOST_CURVES} of ${data.gpus.length} GPUs are drawn.` }) : null,
    /* @__PURE__ */ u4("div", { class: "two", children: charts.map((chart) => /* @__PURE__ */ u4(Chart, { label: chart.label, points: chart.seconds, series: chart.series, unit: chart.unit, height: 160 }, chart.name)) })
  ] });
}
function Tasks({ job }) {
  const path = { job_id: job.id };
  const page = useLive((signal) => call("GET /jobs/{job_id}/tasks", { path, signal }), 3e3, [job.id]);
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Tasks", children: [
    /* @__PURE__ */ u4("h2", { children: plural(job.array?.count ?? 0, "task") }),
    /* @__PURE__ */ u4(Facts, { of: Object.entries(job.array?.states ?? {}).map(([state, tasks]) => [state, `${/^\d+$/.test(tasks) ? "task" : "tasks"} ${tasks}`]) }),
    page.data?.tasks.length ? /* @__PURE__ */ u4(
      Table,
      {
        label: "Tasks that have started",
        rows: page.data.tasks,
        id: (task) => task.id,
        columns: [
          { name: "Task", of: (task) => /* @__PURE__ */ u4(JobLink, { id: task.id }) },
          { name: "State", of: (task) => /* @__PURE__ */ u4(State, { state: task.state }) },
          { name: "Started", of: (task) => time(task.started_at) },
          { name: "Ran for", right: true, of: (task) => since(task.started_at, task.ended_at ? Date.parse(task.ended_at) : Date.now()) },
          { name: "Exit", grow: true, of: exitText }
        ]
      }
    ) : null
  ] });
}
function Surroundings({ job }) {
  const variables = Object.entries(job.environment);
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Surroundings", children: [
    /* @__PURE__ */ u4("h2", { children: "Surroundings" }),
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["Directory", /* @__PURE__ */ u4("span", { class: "mono", children: job.working_directory })],
          ["Output", job.output],
          ["Runner", job.runner],
          ["Retries", job.retries || ""],
          ["Notify", job.notify.join(", ")],
          ["Snapshot", job.snapshot ? /* @__PURE__ */ u4("span", { class: "mono", children: `${job.snapshot.source} ${job.snapshot.commit.slice(0, 12)}${job.snapshot.dirty ? " with changes" : ""}` }) : ""],
          ...Object.entries(job.params).map(([name, value]) => [`Parameter ${name}`, value])
        ]
      }
    ),
    variables.length ? /* @__PURE__ */ u4("details", { children: [
      /* @__PURE__ */ u4("summary", { children: plural(variables.length, "environment variable") }),
      /* @__PURE__ */ u4(Facts, { of: variables.map(([name, value]) => [name, /* @__PURE__ */ u4("span", { class: "mono", children: value })]) })
    ] }) : null
  ] });
}

// src/login.tsx
var SESSION = "/api/v1/session";
function Login() {
  const field = A2(null);
  const [problem, setProblem] = d2("");
  const enter = async (event) => {
    event.preventDefault();
    const token = field.current?.value.trim() ?? "";
    if (field.current) field.current.value = "";
    try {
      const response = await fetch(SESSION, { method: "POST", credentials: "same-origin", headers: { authorization: `Bearer ${token}` } });
      if (!response.ok) throw await asError(response);
      needsLogin.value = false;
    } catch (error) {
      setProblem(error instanceof Error ? error.message : "the server could not be reached");
    }
  };
  return /* @__PURE__ */ u4("section", { class: "card narrow", children: [
    /* @__PURE__ */ u4("h1", { children: "Who are you?" }),
    /* @__PURE__ */ u4("form", { onSubmit: (event) => void enter(event), children: [
      /* @__PURE__ */ u4("label", { children: [
        "Token",
        /* @__PURE__ */ u4("input", { ref: field, type: "password", autocomplete: "off", required: true })
      ] }),
      problem ? /* @__PURE__ */ u4("p", { class: "note note-bad", role: "alert", children: problem }) : null,
      /* @__PURE__ */ u4("button", { type: "submit", class: "primary", children: "Log in" })
    ] }),
    /* @__PURE__ */ u4("h2", { children: "Without a token" }),
    /* @__PURE__ */ u4("p", { children: "The server knows callers on its own machine. From another machine, forward a port through ssh; then you are logged in as your own user:" }),
    /* @__PURE__ */ u4("pre", { tabIndex: 0, children: `ssh -L ${location.port || "8080"}:127.0.0.1:${location.port || "8080"} ${location.hostname}` })
  ] });
}
function Logout() {
  if (!me.value?.via) return null;
  const leave = async () => {
    try {
      const response = await fetch(SESSION, { method: "DELETE", credentials: "same-origin" });
      if (!response.ok) throw await asError(response);
      me.value = null;
      location.reload();
    } catch (error) {
      notify(error instanceof Error ? error.message : "the server could not be reached", { bad: true });
    }
  };
  return /* @__PURE__ */ u4("button", { type: "button", class: "small", onClick: () => void leave(), children: "Log out" });
}

// src/people.tsx
var PERIODS = ["today", "week", "month", "year"];
var REPORT_MS = 6e4;
function People() {
  const [period, setPeriod] = d2("month");
  const query2 = { period, time_zone: Intl.DateTimeFormat().resolvedOptions().timeZone };
  const report2 = useLive((signal) => call("GET /report", { query: query2, signal }), REPORT_MS, [period]);
  const share = useLive((signal) => call("GET /report/fair-share", { query: query2, signal }), REPORT_MS, [period]);
  const invoice = useLive((signal) => call("GET /invoice", { query: query2, signal }), REPORT_MS, [period]);
  const estimates = useLive((signal) => call("GET /report/estimates", { signal }), REPORT_MS, []);
  const tree = useLive((signal) => call("GET /quota/tree", { signal }), 4e3, []);
  const tenants = useLive((signal) => call("GET /tenants", { signal }), 4e3, []);
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("div", { class: "title-row", children: [
      /* @__PURE__ */ u4("h1", { children: "People" }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Period",
        /* @__PURE__ */ u4("select", { value: period, onChange: (event) => setPeriod(event.currentTarget.value), children: PERIODS.map((one) => /* @__PURE__ */ u4("option", { value: one, children: one }, one)) })
      ] })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: report2.error ?? share.error ?? invoice.error ?? tree.error ?? tenants.error }),
    report2.data ? /* @__PURE__ */ u4(Totals, { report: report2.data }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" }),
    /* @__PURE__ */ u4("h2", { children: "Quotas now" }),
    tree.data?.nodes.length ? /* @__PURE__ */ u4(QuotaTree, { nodes: tree.data.nodes }) : null,
    /* @__PURE__ */ u4(TenantQuotas, { tenants: tenants.data?.tenants ?? [] }),
    share.data ? /* @__PURE__ */ u4(FairShare, { share: share.data }) : null,
    report2.data ? /* @__PURE__ */ u4(S, { children: [
      /* @__PURE__ */ u4(Users, { report: report2.data }),
      /* @__PURE__ */ u4(Idle, { report: report2.data })
    ] }) : null,
    invoice.data ? /* @__PURE__ */ u4(Bill, { invoice: invoice.data }) : null,
    estimates.data ? /* @__PURE__ */ u4(Estimates, { estimates: estimates.data.estimates, ranges: estimates.data.ranges, open: estimates.data.open }) : null
  ] });
}
function Totals({ report: report2 }) {
  const { total, waits } = report2;
  const figures = [
    [trim(total.gpu_hours, 1), "GPU-hours"],
    [`${trim(total.cost, 2)} ${report2.currency}`, "cost"],
    [duration(waits.median_seconds), "median wait"],
    [duration(waits.p90_seconds), "90 % waited at most"],
    [count(total.completed), "jobs completed"],
    [count(total.failed), "failed"]
  ];
  if (total.mean_utilisation_percent !== null) figures.push([`${trim(total.mean_utilisation_percent, 0)} %`, "mean utilisation"]);
  if (total.energy_kwh) figures.push([`${trim(total.energy_kwh, 1)} kWh`, "energy"]);
  return /* @__PURE__ */ u4(Figures, { of: figures });
}
function QuotaTree({ nodes }) {
  const models = [...new Set(nodes.map((node) => node.model))];
  const [model, setModel] = d2("*");
  const gpus = (value) => trim(value, 2);
  return /* @__PURE__ */ u4(S, { children: [
    models.length > 1 ? /* @__PURE__ */ u4("div", { class: "toolbar", children: /* @__PURE__ */ u4("label", { class: "inline", children: [
      "GPU model",
      /* @__PURE__ */ u4("select", { value: model, onChange: (event) => setModel(event.currentTarget.value), children: models.map((one) => /* @__PURE__ */ u4("option", { value: one, children: one === "*" ? "all" : one }, one)) })
    ] }) }) : null,
    /* @__PURE__ */ u4(
      Table,
      {
        label: "Quota tree",
        rows: nodes.filter((node) => node.model === model),
        id: (node) => `${node.name} ${node.model}`,
        columns: [
          { name: "Node of the tree", of: (node) => /* @__PURE__ */ u4("span", { class: `level-${Math.min(5, node.level)}`, children: node.name || "the cluster" }) },
          { name: "Used", right: true, of: (node) => gpus(node.used_gpus) },
          { name: "Guaranteed", right: true, of: (node) => gpus(node.guaranteed_gpus) },
          { name: "Borrowed", right: true, of: (node) => gpus(node.borrowed_gpus) },
          { name: "Lent", right: true, of: (node) => gpus(node.lent_gpus) },
          { name: "At most", right: true, of: (node) => node.max_gpus === null ? "no limit" : gpus(node.max_gpus) },
          {
            name: "Used of guaranteed",
            grow: true,
            of: (node) => /* @__PURE__ */ u4(Meter, { label: "", value: node.guaranteed_gpus ? node.used_gpus / node.guaranteed_gpus : null, text: node.borrowed_gpus ? `${gpus(node.borrowed_gpus)} borrowed` : "", tone: node.borrowed_gpus ? "warn" : "good" })
          }
        ]
      }
    )
  ] });
}
function TenantQuotas({ tenants }) {
  const part = (used, limit) => limit === null ? `${trim(used, 1)}, no limit` : `${trim(used, 1)} of ${trim(limit, 1)}`;
  return /* @__PURE__ */ u4(
    Table,
    {
      label: "Quotas of tenants",
      rows: tenants,
      id: (tenant) => tenant.id,
      columns: [
        { name: "Tenant", of: (tenant) => /* @__PURE__ */ u4(Who, { name: tenant.name }) },
        { name: "GPUs", right: true, of: (tenant) => part(tenant.current_gpus, tenant.max_gpus) },
        { name: "Jobs", right: true, of: (tenant) => part(tenant.current_jobs, tenant.max_concurrent_jobs) },
        { name: "Quota", of: (tenant) => tenant.elastic ? "elastic: may borrow" : "fixed" },
        { name: "Budget in GPU-hours", right: true, of: (tenant) => `${part(tenant.used_gpu_hours, tenant.max_gpu_hours)}${tenant.budget_period && tenant.budget_period !== "total" ? ` a ${tenant.budget_period}` : ""}` },
        {
          name: "Budget used",
          grow: true,
          of: (tenant) => tenant.max_gpu_hours ? /* @__PURE__ */ u4(Meter, { label: "", value: tenant.used_gpu_hours / tenant.max_gpu_hours, text: `${Math.round(100 * tenant.used_gpu_hours / tenant.max_gpu_hours)} %` }) : null
        }
      ]
    }
  );
}
function FairShare({ share }) {
  const [chosen, setChosen] = d2("");
  const tenant = share.tenants.some((one) => one.tenant_id === chosen) ? chosen : share.tenants[0]?.tenant_id ?? "";
  const seconds = T2(() => share.slices.map((slice) => Date.parse(slice.start) / 1e3), [share]);
  const series = T2(
    () => [
      { name: "used", values: share.slices.map((slice) => slice.used[tenant] ?? 0) },
      { name: "deserved", values: share.slices.map((slice) => slice.deserved[tenant] ?? 0), dashed: true }
    ],
    [share, tenant]
  );
  if (!tenant) return null;
  return /* @__PURE__ */ u4("section", { "aria-label": "Fair share", children: [
    /* @__PURE__ */ u4("h2", { children: "Fair share" }),
    /* @__PURE__ */ u4("p", { class: "muted", children: "A tenant deserves its part, by weight, of what all tenants used that used GPUs in the period or wait for some." }),
    /* @__PURE__ */ u4("div", { class: "two", children: [
      /* @__PURE__ */ u4(
        Table,
        {
          label: "Deserved and used",
          rows: share.tenants,
          id: (one) => one.tenant_id,
          columns: [
            {
              name: "Tenant",
              of: (one) => /* @__PURE__ */ u4("button", { type: "button", class: "link", "aria-pressed": one.tenant_id === tenant, onClick: () => setChosen(one.tenant_id), children: one.tenant_id })
            },
            { name: "Weight", right: true, of: (one) => trim(one.weight) },
            { name: "Deserves", right: true, of: (one) => `${trim(one.deserved_gpu_hours, 2)} h (${trim(one.deserved_percent, 0)} %)` },
            { name: "Used", right: true, of: (one) => `${trim(one.used_gpu_hours, 2)} h` },
            { name: "Difference", grow: true, of: (one) => difference(one.used_gpu_hours - one.deserved_gpu_hours) }
          ]
        }
      ),
      /* @__PURE__ */ u4("div", { class: "card", children: /* @__PURE__ */ u4(Chart, { label: `GPU-hours of ${tenant}, used and deserved`, points: seconds, series, unit: "GPU-hours", steps: true, until: Date.parse(share.until) / 1e3 }) })
    ] })
  ] });
}
function difference(hours) {
  return `${hours > 0 ? "+" : ""}${trim(hours, 2)} h`;
}
function Users({ report: report2 }) {
  const columns = [
    { name: "User", of: (one) => /* @__PURE__ */ u4(Who, { name: one.user ?? "" }) },
    { name: "Tenant", of: (one) => one.tenant_id },
    { name: "GPU-hours", right: true, of: (one) => trim(one.sums.gpu_hours, 2) },
    { name: "Cost", right: true, of: (one) => `${trim(one.sums.cost, 2)} ${report2.currency}` },
    { name: "Median wait", right: true, of: (one) => one.waits.count ? duration(one.waits.median_seconds) : "–" },
    { name: "90 % waited at most", right: true, of: (one) => one.waits.count ? duration(one.waits.p90_seconds) : "–" },
    { name: "Started", right: true, of: (one) => count(one.sums.started) },
    { name: "Failed", right: true, of: (one) => count(one.sums.failed) },
    { name: "Preempted", right: true, of: (one) => count(one.sums.preempted) },
    { name: "Utilisation", right: true, of: (one) => one.sums.mean_utilisation_percent === null ? "–" : `${trim(one.sums.mean_utilisation_percent, 0)} %` },
    { name: "Energy", grow: true, of: (one) => one.sums.energy_kwh ? `${trim(one.sums.energy_kwh, 2)} kWh` : "–" }
  ];
  const rows = T2(() => [...report2.users].sort((one, other) => other.sums.gpu_hours - one.sums.gpu_hours), [report2]);
  const seconds = T2(() => report2.slices.map((slice) => Date.parse(slice.start) / 1e3), [report2]);
  const series = T2(() => [{ name: "used", values: report2.slices.map((slice) => slice.gpu_hours) }], [report2]);
  return /* @__PURE__ */ u4("section", { "aria-label": "Users", children: [
    /* @__PURE__ */ u4("h2", { children: "Users" }),
    /* @__PURE__ */ u4(Table, { label: "Usage and waits of users", rows, id: (one) => `${one.tenant_id} ${one.user ?? ""}`, columns }),
    seconds.length > 1 ? /* @__PURE__ */ u4("div", { class: "card chart-card", children: /* @__PURE__ */ u4(Chart, { label: "GPU-hours of everybody you may see", points: seconds, series, unit: "GPU-hours", steps: true, until: Date.parse(report2.until) / 1e3 }) }) : null
  ] });
}
function Idle({ report: report2 }) {
  return /* @__PURE__ */ u4("section", { "aria-label": "Idle GPUs", children: [
    /* @__PURE__ */ u4("h2", { children: "Who left GPUs idle" }),
    report2.low_utilisation.length ? /* @__PURE__ */ u4(
      Table,
      {
        label: "Jobs that used little of their GPUs",
        rows: report2.low_utilisation,
        id: (one) => `${one.job_id} ${one.task ?? ""} ${one.gpu_hours}`,
        columns: [
          { name: "User", of: (one) => /* @__PURE__ */ u4(Who, { name: one.user }) },
          { name: "Job", of: (one) => /* @__PURE__ */ u4(JobLink, { id: one.task === null ? one.job_id : `${one.job_id}_${one.task}` }) },
          { name: "Name", of: (one) => /* @__PURE__ */ u4("span", { class: "cut", children: one.name }) },
          { name: "GPU-hours", right: true, of: (one) => trim(one.gpu_hours, 2) },
          { name: "Mean utilisation", right: true, of: (one) => `${trim(one.mean_utilisation_percent, 0)} %` },
          { name: "Peak", grow: true, of: (one) => `${trim(one.peak_utilisation_percent, 0)} %` }
        ]
      }
    ) : /* @__PURE__ */ u4("p", { class: "muted", children: "No job held GPUs for ten minutes with a mean utilisation below 20 %." })
  ] });
}
function Bill({ invoice }) {
  return /* @__PURE__ */ u4("section", { "aria-label": "Invoice", children: [
    /* @__PURE__ */ u4("h2", { children: "Invoice" }),
    /* @__PURE__ */ u4("p", { children: [
      /* @__PURE__ */ u4("strong", { children: `${trim(Number(invoice.total), 2)} ${invoice.currency}` }),
      " ",
      /* @__PURE__ */ u4("span", { class: "muted", children: `${time(invoice.start)} to ${time(invoice.until)}${invoice.is_final ? "" : ", not final"}` })
    ] }),
    invoice.lines.length ? /* @__PURE__ */ u4("details", { children: [
      /* @__PURE__ */ u4("summary", { children: plural(invoice.lines.length, "line") }),
      /* @__PURE__ */ u4(
        Table,
        {
          label: "Invoice lines",
          rows: invoice.lines,
          id: (one) => `${one.tenant} ${one.user} ${one.item} ${one.model} ${one.price}`,
          columns: [
            { name: "Tenant", of: (one) => one.tenant },
            { name: "User", of: (one) => one.user },
            { name: "Item", of: (one) => [one.item, one.model].filter(Boolean).join(" ") },
            { name: "Amount", right: true, of: (one) => `${trim(Number(one.amount), 3)} ${one.unit}` },
            { name: "Price", right: true, of: (one) => one.price },
            { name: "Cost", grow: true, of: (one) => `${trim(Number(one.cost), 4)} ${one.currency}` }
          ]
        }
      )
    ] }) : null
  ] });
}
function Estimates({ estimates, ranges, open }) {
  return /* @__PURE__ */ u4("section", { "aria-label": "Estimates", children: [
    /* @__PURE__ */ u4("h2", { children: "Were the expected starts right?" }),
    estimates.some((one) => one.judged) ? /* @__PURE__ */ u4(
      Table,
      {
        label: "Expected starts of the last 30 days",
        rows: estimates.filter((one) => one.judged),
        id: (one) => one.basis,
        columns: [
          { name: "Basis", of: (one) => one.basis },
          { name: "Judged", right: true, of: (one) => count(one.judged) },
          { name: "Kept", right: true, of: (one) => one.kept_percent === null ? "–" : `${trim(one.kept_percent, 1)} %` },
          { name: "Later", right: true, of: (one) => count(one.late) },
          { name: "Earlier", right: true, of: (one) => count(one.early) },
          { name: "Median error", right: true, of: (one) => duration(one.median_error_seconds) },
          { name: "90 % within", grow: true, of: (one) => duration(one.p90_error_seconds) }
        ]
      }
    ) : null,
    /* @__PURE__ */ u4("p", { class: "muted", children: [
      ranges.judged ? `${count(ranges.within)} of ${plural(ranges.judged, "start")} fell into the range that was shown (${ranges.within_percent ?? 0} %; four in five should). ` : "No job that was given a range and waited more than a minute has started yet. ",
      `${plural(open, "expected start")} still to be judged.`
    ] })
  ] });
}

// src/plan.tsx
var POLL_MS2 = 5e3;
var LABEL_PX = 116;
var NARROW_LABEL_PX = 64;
var ROW_PX2 = 20;
var HEAD_PX = 22;
var NODE_GAP_PX = 10;
var HOURS = [1, 3, 6, 12, 24, 72, 168, 720];
var PAST = [0, 1, 6, 24, 168];
function runId(run) {
  return `${run.kind} ${run.job_id} ${run.task ?? ""} ${run.start ?? ""} ${run.places.map((place2) => `${place2.node}${place2.gpu_ids.join("")}`).join(" ")}`;
}
function Plan({ job }) {
  const [ahead, setAhead] = d2(job ? 72 : 12);
  const [back, setBack] = d2(job ? 0 : 1);
  const [pages, setPages] = d2([]);
  const after = pages.at(-1) ?? "";
  const query2 = job ? { job, hours_ahead: ahead, hours_back: back } : { after, hours_ahead: ahead, hours_back: back };
  const plan = useLive((signal) => call("GET /plan", { query: query2, signal }), POLL_MS2, [job, after, ahead, back]);
  const [chosen, setChosen] = d2("");
  const found = plan.data;
  const run = found?.runs.find((one) => runId(one) === chosen) ?? null;
  const [isFitted, setFitted] = d2(!job);
  const focus = job && found ? found.runs.find((one) => one.job_id === job && one.kind !== "past") ?? null : null;
  h2(() => {
    if (isFitted || !found) return;
    const needed = focus?.start ? (Date.parse(focus.end && !focus.end_unknown ? focus.end : focus.start) - Date.now()) / 36e5 : HOURS[HOURS.length - 1];
    const hours = HOURS.find((one) => one > (needed ?? 0) * 1.15) ?? 720;
    if (focus || hours === ahead) setFitted(true);
    setAhead(hours);
  }, [found, focus, isFitted]);
  return /* @__PURE__ */ u4(S, { children: [
    job ? /* @__PURE__ */ u4("p", { class: "crumbs", children: [
      /* @__PURE__ */ u4("a", { href: "#/plan", children: "Plan" }),
      " / ",
      /* @__PURE__ */ u4(JobLink, { id: job })
    ] }) : null,
    /* @__PURE__ */ u4("div", { class: "title-row", children: [
      /* @__PURE__ */ u4("h1", { children: job ? `Before ${job}` : "Plan" }),
      /* @__PURE__ */ u4("div", { class: "toolbar", children: [
        /* @__PURE__ */ u4(Choice, { label: "Past", value: back, of: PAST, set: setBack, none: "none" }),
        /* @__PURE__ */ u4(Choice, { label: "Ahead", value: ahead, of: HOURS, set: setAhead })
      ] })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: plan.error }),
    found ? /* @__PURE__ */ u4(S, { children: [
      job ? null : /* @__PURE__ */ u4(Summary2, { plan: found }),
      found.cut.map((text) => /* @__PURE__ */ u4("p", { class: "note", children: text }, text)),
      job ? /* @__PURE__ */ u4(Before, { plan: found, run: focus }) : null,
      found.nodes.length ? /* @__PURE__ */ u4(S, { children: [
        /* @__PURE__ */ u4(Legend, {}),
        /* @__PURE__ */ u4("div", { class: run ? "split" : "", children: [
          /* @__PURE__ */ u4(Gantt, { plan: found, chosen, choose: setChosen, focus }),
          run ? /* @__PURE__ */ u4(RunDetail, { run, close: () => setChosen("") }) : null
        ] }),
        pages.length || found.next_node ? /* @__PURE__ */ u4("div", { class: "buttons", children: [
          /* @__PURE__ */ u4("button", { type: "button", disabled: !pages.length, onClick: () => setPages(pages.slice(0, -1)), children: "Previous nodes" }),
          /* @__PURE__ */ u4("button", { type: "button", disabled: !found.next_node, onClick: () => setPages([...pages, found.next_node]), children: "Next nodes" })
        ] }) : null,
        /* @__PURE__ */ u4("h2", { children: "The same as a table" }),
        /* @__PURE__ */ u4(RunTable, { plan: found, choose: setChosen }),
        found.reservations.length ? /* @__PURE__ */ u4(Reservations2, { list: found.reservations }) : null
      ] }) : /* @__PURE__ */ u4(Empty, { title: job ? "The forecast has no place for this job" : "No nodes yet", children: job ? /* @__PURE__ */ u4("p", { children: [
        /* @__PURE__ */ u4(JobLink, { id: job, children: "Its page" }),
        " says why it waits."
      ] }) : null })
    ] }) : plan.error ? null : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" })
  ] });
}
function nameOf(run) {
  return `${run.job_id}${run.task === null ? "" : `_${run.task}`}`;
}
function hoursText(hours) {
  return hours < 48 ? `${hours} h` : `${hours / 24} d`;
}
function Choice({ label, value, of, set, none }) {
  return /* @__PURE__ */ u4("label", { class: "inline", children: [
    label,
    /* @__PURE__ */ u4("select", { value, onChange: (event) => set(Number(event.currentTarget.value)), children: of.map((hours) => /* @__PURE__ */ u4("option", { value: hours, children: hours ? hoursText(hours) : none }, hours)) })
  ] });
}
function Summary2({ plan }) {
  const estimates = useLive((signal) => call("GET /report/estimates", { signal }), 3e5, []);
  const kept = estimates.data?.ranges;
  const running = plan.runs.filter((run) => run.kind === "running").length;
  const figures = [
    [count(running), running === 1 ? "job runs on these nodes" : "jobs run on these nodes"],
    [count(plan.waiting), plan.waiting === 1 ? "job could start" : "jobs could start"],
    [count(plan.forecast), "of them have an expected start"]
  ];
  if (kept?.judged && kept.within_percent !== null) figures.push([`${trim(kept.within_percent, 1)} %`, `of ${count(kept.judged)} starts fell into their range of 80 %`]);
  if (plan.reservations.length) figures.push([count(plan.reservations.length), plan.reservations.length === 1 ? "advance reservation" : "advance reservations"]);
  return /* @__PURE__ */ u4(Figures, { of: figures });
}
function Legend() {
  return /* @__PURE__ */ u4("ul", { class: "legend", "aria-label": "Legend", children: [
    /* @__PURE__ */ u4("li", { class: "legend-past", children: "ran" }),
    /* @__PURE__ */ u4("li", { class: "legend-running", children: "runs, until its expected end" }),
    /* @__PURE__ */ u4("li", { class: "legend-reserved", children: "reserved" }),
    /* @__PURE__ */ u4("li", { class: "legend-forecast", children: "forecast" }),
    /* @__PURE__ */ u4("li", { class: "legend-window", children: "advance reservation" }),
    /* @__PURE__ */ u4("li", { class: "legend-unknown", children: "? nothing says when it ends" })
  ] });
}
function predecessors(plan, run) {
  const found = /* @__PURE__ */ new Map();
  for (const place2 of run.places) {
    for (const gpu of place2.gpu_ids) {
      let last = null;
      for (const one of plan.runs) {
        if (one === run || one.kind === "past" || !one.end || !run.start || one.end > run.start) continue;
        if (!one.places.some((other) => other.node === place2.node && other.gpu_ids.includes(gpu))) continue;
        if (!last || (last.end ?? "") < one.end) last = one;
      }
      if (last) found.set(runId(last), last);
    }
  }
  return [...found.values()];
}
function Before({ plan, run }) {
  if (!run) return /* @__PURE__ */ u4("p", { class: "note", children: "No start of this job is expected within the hours shown. Look further ahead." });
  if (run.kind === "running") return /* @__PURE__ */ u4("p", { class: "note note-good", children: [
    "It runs since ",
    time(run.start),
    run.end ? ` and should end ${time(run.end)}` : "",
    "."
  ] });
  const before = predecessors(plan, run);
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Before it", children: [
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["Expected start", run.expected_start ? startTime(run) : `${time(run.start)} (${until(run.start)})`],
          ["By time limits", run.expected_start_limit ? `${time(run.expected_start_limit)} if all jobs before it use their full limits` : ""],
          ["After", run.expected_start_after ? /* @__PURE__ */ u4("span", { children: [
            /* @__PURE__ */ u4(JobLink, { id: run.expected_start_after }),
            " (",
            run.expected_start_basis,
            ")"
          ] }) : ""],
          ["Expected end", run.end ? run.end_unknown ? "unknown" : time(run.end) : "never by itself"],
          ["By its time limit", run.latest_end ? time(run.latest_end) : ""],
          ["How sure", run.kind === "reserved" ? "reserved: later jobs do not delay it" : "forecast: later submissions may come first"],
          ["On", placesText(run)]
        ]
      }
    ),
    run.depends_on.length ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: [
      "This start depends on the unknown end of",
      " ",
      run.depends_on.map((id, place2) => /* @__PURE__ */ u4("span", { children: [
        place2 ? ", " : "",
        /* @__PURE__ */ u4(JobLink, { id })
      ] }, id)),
      ": nothing says how long ",
      run.depends_on.length === 1 ? "it runs" : "they run",
      "."
    ] }) : null,
    before.length ? /* @__PURE__ */ u4(S, { children: [
      /* @__PURE__ */ u4("h2", { children: "Before it on its GPUs" }),
      /* @__PURE__ */ u4("ul", { children: before.map((one) => /* @__PURE__ */ u4("li", { children: [
        one.job_id ? /* @__PURE__ */ u4(JobLink, { id: one.job_id, children: nameOf(one) }) : "a job",
        " of ",
        one.user || "another user",
        ", until ",
        one.end_unknown ? "an unknown time (its time limit or default ends " : "",
        time(one.end_unknown ? one.latest_end ?? one.end : one.end),
        one.end_unknown ? ")" : ""
      ] }, runId(one))) })
    ] }) : /* @__PURE__ */ u4("p", { children: "No other job is before it on its GPUs." })
  ] });
}
function placesText(run) {
  return run.places.map((place2) => `${place2.node}[${place2.gpu_ids.map((gpu, index) => (place2.shares[index] ?? 1) < 1 ? `${gpu} at ${Math.round((place2.shares[index] ?? 1) * 100)} %` : gpu).join(",")}]`).join(" ");
}
function RunDetail({ run, close }) {
  return /* @__PURE__ */ u4("aside", { class: "card detail", "aria-label": "The chosen run", children: [
    /* @__PURE__ */ u4("div", { class: "tile-head", children: [
      /* @__PURE__ */ u4("h2", { children: run.job_id ? nameOf(run) : "A job of another user" }),
      /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": "Close", onClick: close, children: "×" })
    ] }),
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["What", run.kind],
          ["Name", run.name],
          ["User", run.user ? /* @__PURE__ */ u4(Who, { name: run.user }) : ""],
          ["Start", time(run.start)],
          ["Expected start", run.expected_start ? startTime(run) : ""],
          [run.kind === "past" ? "End" : "Expected end", run.end ? run.end_unknown ? "unknown" : time(run.end) : "never by itself"],
          ["By its time limit", run.latest_end ? time(run.latest_end) : ""],
          ["On", placesText(run)]
        ]
      }
    ),
    run.job_id ? /* @__PURE__ */ u4("p", { class: "buttons", children: [
      /* @__PURE__ */ u4(JobLink, { id: run.job_id, children: "Open the job" }),
      run.kind === "past" ? null : /* @__PURE__ */ u4("a", { href: `#/plan/${encodeURIComponent(run.job_id)}`, children: "Who is before it" })
    ] }) : null
  ] });
}
function RunTable({ plan, choose }) {
  const [most, setMost] = d2(100);
  const columns = [
    { name: "What", of: (run) => /* @__PURE__ */ u4("span", { class: `state state-${run.kind === "running" ? "running" : run.kind === "reserved" ? "upcoming" : "plain"}`, children: run.kind }) },
    { name: "Job", of: (run) => run.job_id ? /* @__PURE__ */ u4(JobLink, { id: run.job_id, children: nameOf(run) }) : "–" },
    { name: "User", of: (run) => run.user ? /* @__PURE__ */ u4(Who, { name: run.user }) : "–" },
    { name: "Start", of: (run) => `${time(run.start)}${run.depends_on.length ? " ?" : ""}` },
    { name: "End", of: (run) => run.end ? run.end_unknown ? "unknown" : time(run.end) : "–" },
    { name: "GPUs", of: (run) => trim(run.places.reduce((sum, place2) => sum + place2.shares.reduce((all, share) => all + share, 0), 0)), right: true },
    { name: "Where", of: (run) => /* @__PURE__ */ u4("span", { class: "mono", children: placesText(run) }), grow: true },
    {
      name: "",
      of: (run) => /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": `Details of ${run.job_id || "the run"}`, onClick: () => choose(runId(run)), children: "…" })
    }
  ];
  const rows = T2(() => [...plan.runs].sort((one, other) => (one.start ?? "").localeCompare(other.start ?? "")), [plan]);
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4(Table, { label: "Runs", columns, rows: rows.slice(0, most), id: runId }),
    rows.length > most ? /* @__PURE__ */ u4("p", { children: /* @__PURE__ */ u4("button", { type: "button", onClick: () => setMost(most + 400), children: [
      "Show more of ",
      plural(rows.length, "run")
    ] }) }) : null
  ] });
}
function Reservations2({ list }) {
  const columns = [
    { name: "Reservation", of: (one) => one.id },
    { name: "For", of: (one) => one.user ? `${one.user} of ${one.tenant_id}` : one.tenant_id },
    { name: "Start", of: (one) => time(one.start) },
    { name: "End", of: (one) => time(one.end) },
    { name: "Where", of: (one) => /* @__PURE__ */ u4("span", { class: "mono", children: one.places.map((place2) => `${place2.node}[${place2.gpu_ids.join(",")}]`).join(" ") }), grow: true }
  ];
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h2", { children: "Advance reservations" }),
    /* @__PURE__ */ u4(Table, { label: "Advance reservations", columns, rows: list, id: (one) => one.id })
  ] });
}
function layOut2(plan, width) {
  const left = width < 560 ? NARROW_LABEL_PX : LABEL_PX;
  const begin = Date.parse(plan.begin ?? "");
  const end = Date.parse(plan.end ?? "");
  const scale = Math.max(1, width - left) / Math.max(1, end - begin);
  const x3 = (at) => left + (Math.min(Math.max(at, begin), end) - begin) * scale;
  const layout = { bars: [], rows: [], windows: [], ticks: [], nowX: x3(Date.parse(plan.made_at ?? "")), left, height: HEAD_PX };
  const rowOf = /* @__PURE__ */ new Map();
  for (const node of plan.nodes) {
    layout.height += NODE_GAP_PX;
    layout.rows.push({ y: layout.height, text: `${node.takes_work ? "" : "! "}${node.id}`, strong: true, height: ROW_PX2 });
    layout.height += ROW_PX2;
    for (const gpu of node.gpus) {
      rowOf.set(`${node.id}:${gpu.index}`, layout.height);
      layout.rows.push({ y: layout.height, text: left > 100 ? `${gpu.index} ${gpu.model}` : String(gpu.index), strong: false, height: ROW_PX2 });
      layout.height += ROW_PX2;
    }
  }
  layout.height += 4;
  const used = /* @__PURE__ */ new Map();
  for (const run of [...plan.runs].sort((one, other) => (one.start ?? "").localeCompare(other.start ?? ""))) {
    const from = Date.parse(run.start ?? "");
    const to = run.end ? Math.max(from + 1, Date.parse(run.end)) : end;
    for (const place2 of run.places) {
      place2.gpu_ids.forEach((gpu, index) => {
        const key = `${place2.node}:${gpu}`;
        const y5 = rowOf.get(key);
        if (y5 === void 0) return;
        const share = Math.min(1, place2.shares[index] ?? 1);
        const held = (used.get(key) ?? []).filter((one) => one.until > from);
        let top = 0;
        for (const one of [...held].sort((a4, b4) => a4.top - b4.top)) if (one.top < top + share && top < one.top + one.share) top = one.top + one.share;
        top = Math.min(top, 1 - share);
        used.set(key, [...held, { until: to, top, share }]);
        const inner = ROW_PX2 - 3;
        layout.bars.push({ x: x3(from), y: y5 + 1 + top * inner, width: Math.max(1.5, x3(to) - x3(from) - 1), height: Math.max(2, share * inner), run });
      });
    }
  }
  for (const reservation of plan.reservations) {
    const from = x3(Date.parse(reservation.start ?? ""));
    const to = x3(Date.parse(reservation.end ?? ""));
    for (const place2 of reservation.places) {
      for (const gpu of place2.gpu_ids) {
        const y5 = rowOf.get(`${place2.node}:${gpu}`);
        if (y5 !== void 0) layout.windows.push({ x: from, y: y5, width: to - from, height: ROW_PX2 - 1, reservation });
      }
    }
  }
  const spanHours = (end - begin) / 36e5;
  const step = [0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 168].find((hours) => (width - left) / spanHours * hours > 76) ?? 168;
  const offset = (/* @__PURE__ */ new Date()).getTimezoneOffset() * 6e4;
  const stepMs = step * 36e5;
  for (let at = Math.ceil((begin - offset) / stepMs) * stepMs + offset; at < end; at += stepMs) layout.ticks.push({ x: x3(at), text: tickText(new Date(at), step) });
  return layout;
}
function tickText(at, stepHours) {
  const clock3 = `${String(at.getHours()).padStart(2, "0")}:${String(at.getMinutes()).padStart(2, "0")}`;
  if (stepHours >= 24 || clock3 === "00:00") return `${at.getDate()} ${at.toLocaleString("en", { month: "short" })}`;
  return clock3;
}
function Gantt({ plan, chosen, choose, focus }) {
  const canvas = A2(null);
  const [width, setWidth] = d2(0);
  const [hovered, setHovered] = d2(null);
  const layout = T2(() => layOut2(plan, width), [plan, width]);
  h2(() => {
    const element = canvas.current?.parentElement;
    if (!element) return void 0;
    const size = new ResizeObserver(() => {
      const style = getComputedStyle(element);
      setWidth(element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    });
    size.observe(element);
    return () => size.disconnect();
  }, []);
  h2(() => {
    const again = () => {
      if (canvas.current && width > 0) draw2(canvas.current, layout, width, chosen, focus?.job_id ?? "");
    };
    again();
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", again);
    return () => theme.removeEventListener("change", again);
  }, [layout, width, chosen, focus]);
  const at = (event) => layout.bars.findLast((bar) => event.offsetX >= bar.x - 1 && event.offsetX <= bar.x + bar.width + 1 && event.offsetY >= bar.y && event.offsetY <= bar.y + bar.height) ?? null;
  const run = hovered?.run;
  return /* @__PURE__ */ u4("div", { class: "map card", children: [
    /* @__PURE__ */ u4(
      "canvas",
      {
        ref: canvas,
        role: "img",
        "aria-label": `Time line of ${plural(plan.nodes.reduce((sum, node) => sum + node.gpus.length, 0), "GPU")} with ${plural(plan.runs.length, "run")}; the table below has the same data`,
        onMouseMove: (event) => setHovered(at(event)),
        onMouseLeave: () => setHovered(null),
        onClick: (event) => {
          const bar = at(event);
          choose(bar ? runId(bar.run) : "");
        }
      }
    ),
    /* @__PURE__ */ u4("p", { class: "map-line", "aria-hidden": "true", children: run ? `${run.job_id || "a job of another user"}${run.name ? ` ${run.name}` : ""} · ${run.user || "–"} · ${run.kind} · ${time(run.start)} to ${run.end ? run.end_unknown ? "an unknown end" : time(run.end) : "until it is stopped"}${run.start && run.end && !run.end_unknown ? ` (${duration((Date.parse(run.end) - Date.parse(run.start)) / 1e3)})` : ""}${run.depends_on.length ? ` · depends on the unknown end of ${run.depends_on.join(", ")}` : ""}` : "Point at a bar to read it; click to open it. A colour is a user; the line is now." })
  ] });
}
function draw2(canvas, layout, width, chosen, focus) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(layout.height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${layout.height}px`;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(name).trim();
  const dark = css("--dark") === "1";
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, layout.height);
  const font2 = css("--font");
  pen.font = `11px ${font2}`;
  for (const row of layout.rows) {
    if (!row.strong) {
      pen.fillStyle = css("--cell");
      pen.globalAlpha = 0.55;
      pen.fillRect(layout.left, row.y + 1, width - layout.left, row.height - 3);
      pen.globalAlpha = 1;
    }
    pen.fillStyle = css(row.strong ? "--text" : "--muted");
    pen.font = `${row.strong ? "600 12px" : "11px"} ${font2}`;
    pen.fillText(fitted(pen, row.text, row.strong ? width : layout.left - 8), 0, row.y + row.height - 6);
  }
  pen.font = `11px ${font2}`;
  for (const tick of layout.ticks) {
    pen.fillStyle = css("--line");
    pen.fillRect(tick.x, HEAD_PX - 4, 1, layout.height - HEAD_PX);
    pen.fillStyle = css("--muted");
    if (tick.x + pen.measureText(tick.text).width < width) pen.fillText(tick.text, tick.x, 12);
  }
  for (const one of layout.windows) {
    pen.fillStyle = css("--other-soft");
    pen.fillRect(one.x, one.y, one.width, one.height);
    pen.strokeStyle = css("--other");
    pen.setLineDash([4, 3]);
    pen.strokeRect(one.x + 0.5, one.y + 0.5, Math.max(1, one.width - 1), one.height - 1);
    pen.setLineDash([]);
    pen.fillStyle = css("--other");
    if (one.width > 60) pen.fillText(fitted(pen, `${one.reservation.id} ${one.reservation.user || one.reservation.tenant_id}`, one.width - 8), one.x + 4, one.y + 13);
  }
  for (const bar of layout.bars) drawBar(pen, bar, dark, css, bar.run.job_id !== "" && bar.run.job_id === focus, runId(bar.run) === chosen);
  pen.fillStyle = css("--bad");
  pen.fillRect(layout.nowX - 0.75, HEAD_PX - 8, 1.5, layout.height - HEAD_PX + 8);
  pen.globalAlpha = 1;
}
function drawBar(pen, bar, dark, css, isFocus, isChosen) {
  const { x: x3, y: y5, width, height, run } = bar;
  const tone = run.user ? hue(run.user) : 0;
  const saturation = run.user ? 60 : 0;
  const colour = (light) => `hsl(${tone} ${saturation}% ${light}%)`;
  pen.save();
  pen.beginPath();
  pen.rect(x3, y5, width, height);
  pen.clip();
  const isSolid = run.kind === "past" || run.kind === "running";
  pen.fillStyle = isSolid ? colour(dark ? run.kind === "past" ? 30 : 42 : run.kind === "past" ? 68 : 38) : colour(dark ? 21 : 90);
  pen.fillRect(x3, y5, width, height);
  if (run.kind === "reserved") {
    pen.strokeStyle = colour(dark ? 52 : 62);
    pen.lineWidth = 2;
    pen.beginPath();
    for (let at = x3 - height; at < x3 + width; at += 7) {
      pen.moveTo(at, y5 + height);
      pen.lineTo(at + height, y5);
    }
    pen.stroke();
  }
  if (!isSolid) {
    pen.strokeStyle = colour(dark ? 55 : 55);
    pen.lineWidth = 1;
    if (run.kind === "forecast") pen.setLineDash([3, 3]);
    pen.strokeRect(x3 + 0.5, y5 + 0.5, width - 1, height - 1);
    pen.setLineDash([]);
  }
  if (height > 10 && width > 26) {
    const mark = run.end_unknown || run.depends_on.length ? " ?" : "";
    const text = fitted(pen, `${run.job_id ? run.job_id.replace("job-", "") : ""}${run.task === null ? "" : `_${run.task}`}${mark} ${run.name || run.user}`, width - 8);
    if (run.kind === "reserved" && text) {
      pen.fillStyle = colour(dark ? 21 : 90);
      pen.fillRect(x3 + 2, y5 + 2, pen.measureText(text).width + 4, height - 4);
    }
    pen.fillStyle = run.kind === "running" ? "#ffffff" : run.kind === "past" ? dark ? "#ffffff" : "#10131a" : css("--text");
    pen.fillText(text, x3 + 4, y5 + height / 2 + 4);
  }
  pen.restore();
  if (isFocus || isChosen) {
    pen.strokeStyle = css("--text");
    pen.lineWidth = 2;
    pen.strokeRect(x3, y5, width, height);
    pen.lineWidth = 1;
  }
}
function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let length = Math.min(text.length, Math.floor(width / 4));
  while (length > 0 && pen.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 1 ? `${text.slice(0, length)}…` : "";
}

// src/queue.tsx
var PAGE = 200;
var ENDED2 = "completed,failed,cancelled";
var GROUPS = ["none", "user", "tenant", "name", "state"];
var CHOICES = ["User", "Tenant", "GPUs", "Priority", "Place", "Where", "Since", "Starts", "Ends", "Why"];
function ofLine(line2) {
  return {
    ...line2,
    tenant: line2.tenant_id,
    places: line2.places.join(" "),
    since: line2.started_at ?? line2.submitted_at,
    start: line2.expected_start,
    earliest: line2.expected_start_earliest,
    latest: line2.expected_start_latest,
    end: line2.expected_end,
    mayChange: line2.may_change
  };
}
function ofJob(job) {
  return {
    ...job,
    tenant: job.tenant_id,
    gpus: job.gpu_count,
    places: job.allocation.map((place2) => place2.node).join(" "),
    position: null,
    since: job.ended_at,
    start: null,
    earliest: null,
    latest: null,
    end: null,
    tasks: job.array?.tasks ?? "",
    mayChange: !job.redacted
  };
}
function Queue() {
  const [ended, setEnded] = d2(false);
  const [words2, setWords] = d2("");
  const [mine, setMine] = d2(false);
  const [sort, setSort] = d2("queue");
  const [group, setGroup] = d2("none");
  const [offset, setOffset] = d2(0);
  const [selected, setSelected] = d2(/* @__PURE__ */ new Set());
  const [current, setCurrent] = d2(-1);
  const [hiddenColumns, setHiddenColumns] = d2(/* @__PURE__ */ new Set(["Tenant"]));
  const order = group === "none" ? sort : group;
  const page = useLive((signal) => ended ? endedJobs(words2, mine, offset, signal) : activeJobs(words2, mine, order, offset, signal), 2500, [
    ended,
    words2,
    mine,
    order,
    offset
  ]);
  const onWindow = q2((first, rows2) => {
    setOffset((old) => first < old || first + rows2 > old + PAGE ? Math.max(0, Math.round(first - (PAGE - rows2) / 2)) : old);
  }, []);
  const { data } = page;
  const rows = data?.rows ?? [];
  const toggle = (row) => setSelected((old) => {
    const next = new Set(old);
    if (!next.delete(row.id)) next.add(row.id);
    return next;
  });
  const run = (action, ids = [...selected]) => {
    const one = rows.find((row) => row.id === ids[0]);
    if (ids.length)
      void act(
        action,
        ids,
        () => {
          setSelected(/* @__PURE__ */ new Set());
          page.refresh();
        },
        one?.priority
      );
  };
  _2(() => {
    const press = (event) => {
      const inField = event.target instanceof HTMLElement && event.target.matches("input:not([type=checkbox]), textarea, select, button, a, dialog *");
      if (inField || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const row = rows[current];
      const ids = selected.size ? [...selected] : row?.mayChange ? [row.id] : [];
      if (event.key === "j" || event.key === "ArrowDown") setCurrent((old) => Math.min(rows.length - 1, old + 1));
      else if (event.key === "k" || event.key === "ArrowUp") setCurrent((old) => Math.max(0, old - 1));
      else if (event.key === "Enter" && row) location.hash = `#/jobs/${row.id}`;
      else if (event.key === " " && row?.mayChange) toggle(row);
      else if (event.key === "x" && !ended) run("cancel", ids);
      else if (event.key === "h" && !ended) run(row?.hold && !selected.size ? "release" : "hold", ids);
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  });
  const restart = (change2) => {
    change2();
    setOffset(0);
    setSelected(/* @__PURE__ */ new Set());
    setCurrent(-1);
    document.querySelector(".windowed")?.scrollTo(0, 0);
  };
  return /* @__PURE__ */ u4("div", { class: "page-tall", children: [
    /* @__PURE__ */ u4("h1", { children: "Queue" }),
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      /* @__PURE__ */ u4("div", { class: "tabs", role: "group", "aria-label": "Which jobs", children: [
        /* @__PURE__ */ u4("button", { type: "button", "aria-pressed": !ended, onClick: () => restart(() => setEnded(false)), children: "Running and waiting" }),
        /* @__PURE__ */ u4("button", { type: "button", "aria-pressed": ended, onClick: () => restart(() => setEnded(true)), children: "Ended" })
      ] }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Search",
        /* @__PURE__ */ u4("input", { type: "search", value: words2, placeholder: ended ? "name" : "id, name, user, state", onInput: (event) => restart(() => setWords(event.currentTarget.value)) })
      ] }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        /* @__PURE__ */ u4("input", { type: "checkbox", checked: mine, onChange: (event) => restart(() => setMine(event.currentTarget.checked)) }),
        " Mine"
      ] }),
      ended ? null : /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Group by",
        /* @__PURE__ */ u4("select", { value: group, onChange: (event) => restart(() => setGroup(event.currentTarget.value)), children: GROUPS.map((one) => /* @__PURE__ */ u4("option", { value: one, children: one }, one)) })
      ] }),
      /* @__PURE__ */ u4(ColumnChoice, { hidden: hiddenColumns, change: setHiddenColumns }),
      /* @__PURE__ */ u4("span", { class: "muted counts", children: ended ? data ? plural(data.total, "job") : "" : countsText(data?.counts) })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: page.error }),
    selected.size ? /* @__PURE__ */ u4("div", { class: "toolbar chosen-bar", role: "toolbar", "aria-label": "Actions on the selected jobs", children: [
      /* @__PURE__ */ u4("strong", { children: [
        plural(selected.size, "job"),
        " selected"
      ] }),
      (ended ? ["retry"] : ["cancel", "hold", "release", "priority"]).map((action) => /* @__PURE__ */ u4("button", { type: "button", class: action === "cancel" ? "danger" : "", onClick: () => run(action), children: action }, action)),
      /* @__PURE__ */ u4("button", { type: "button", class: "plain", onClick: () => setSelected(/* @__PURE__ */ new Set()), children: "Clear" })
    ] }) : null,
    data && data.total === 0 ? /* @__PURE__ */ u4(Nothing, { ended, filtered: Boolean(words2) || mine }) : /* @__PURE__ */ u4(
      WindowedTable,
      {
        columns: columnsFor(ended, selected, toggle, hiddenColumns),
        total: data?.total ?? 0,
        offset: data?.offset ?? 0,
        rows,
        id: (row) => row.id,
        label: ended ? "Ended jobs" : "Running and waiting jobs",
        sort: group === "none" ? sort : group,
        ...ended ? {} : { onSort: (next) => restart(() => {
          setGroup("none");
          setSort(next);
        }) },
        onWindow,
        current: rows[current]?.id ?? "",
        rowClass: (row, index) => group !== "none" && isFirst(rows, index - (data?.offset ?? 0), group) ? "first-of-group" : selected.has(row.id) ? "selected" : ""
      }
    )
  ] });
}
function startTitle(row) {
  const range = row.earliest && row.latest ? `; four in five such jobs start between ${time(row.earliest)} and ${time(row.latest)}` : "";
  return `${time(row.start)}${range}`;
}
function isFirst(rows, place2, group) {
  return place2 > 0 && rows[place2]?.[group] !== rows[place2 - 1]?.[group];
}
async function activeJobs(words2, mine, sort, offset, signal) {
  const query2 = { filter: words2, user: mine ? "@me" : "", sort, offset, limit: PAGE, without_gpus: true };
  const found = await call("GET /overview", { query: query2, signal });
  return { rows: found.jobs.map(ofLine), offset: found.offset, total: found.total, counts: found.counts };
}
async function endedJobs(words2, mine, offset, signal) {
  const query2 = { state: ENDED2, name: words2, user: mine ? "@me" : "", sort: "-ended_at", offset, limit: PAGE };
  const found = await call("GET /jobs", { query: query2, signal });
  return { rows: found.jobs.map(ofJob), offset, total: found.total, counts: {} };
}
function countsText(counts) {
  return counts ? Object.entries(counts).filter(([, number]) => number > 0).map(([state, number]) => `${count(number)} ${state}`).join(" · ") : "";
}
function Nothing({ ended, filtered }) {
  if (filtered) return /* @__PURE__ */ u4(Empty, { title: "No job matches", children: "Change the search, or show the jobs of everybody." });
  return ended ? /* @__PURE__ */ u4(Empty, { title: "No job has ended yet" }) : /* @__PURE__ */ u4(Empty, { title: "The queue is empty", children: /* @__PURE__ */ u4("p", { children: [
    "Submit one: ",
    /* @__PURE__ */ u4("code", { children: "tgpu submit --gpus 1 -- python train.py" })
  ] }) });
}
function columnsFor(ended, selected, toggle, hidden) {
  const all = [
    {
      name: "",
      key: "select",
      of: (row) => row.mayChange ? /* @__PURE__ */ u4("input", { type: "checkbox", "aria-label": `Select ${row.id}`, checked: selected.has(row.id), onChange: () => toggle(row) }) : null
    },
    { name: "Job", sort: "number", of: (row) => /* @__PURE__ */ u4(JobLink, { id: row.id }) },
    { name: "Name", sort: "name", of: (row) => /* @__PURE__ */ u4("span", { class: "cut", children: [
      row.name,
      row.tasks ? /* @__PURE__ */ u4("span", { class: "muted", children: [
        " [",
        row.tasks,
        "]"
      ] }) : null
    ] }) },
    { name: "State", sort: "state", of: (row) => /* @__PURE__ */ u4(State, { state: row.hold && row.state === "pending" ? "held" : row.state }) },
    { name: "User", sort: "user", of: (row) => /* @__PURE__ */ u4(Who, { name: row.user }) },
    { name: "Tenant", sort: "tenant", of: (row) => row.tenant },
    { name: "GPUs", sort: "gpus", right: true, of: (row) => trim(row.gpus) },
    { name: "Priority", sort: "priority", right: true, of: (row) => row.priority || "" },
    ended ? null : { name: "Place", sort: "queue", right: true, of: (row) => row.position ?? "" },
    { name: "Where", of: (row) => /* @__PURE__ */ u4("span", { class: "cut mono", children: row.places }) },
    ended ? { name: "Ended", right: true, key: "Since", of: (row) => time(row.since) } : { name: "Since", sort: "time", right: true, of: (row) => since(row.since) },
    ended ? null : { name: "Starts", right: true, of: (row) => row.position === null ? "" : row.start ? /* @__PURE__ */ u4("span", { title: startTitle(row), children: untilRange(row.start, row.earliest, row.latest) }) : "unknown" },
    ended ? null : { name: "Ends", right: true, of: (row) => row.end ? /* @__PURE__ */ u4("span", { title: time(row.end), children: until(row.end) }) : "" },
    { name: "Why", grow: true, of: (row) => /* @__PURE__ */ u4("span", { title: row.reason, children: row.reason }) }
  ];
  return all.filter((column) => column !== null && !hidden.has(column.key ?? column.name));
}
function ColumnChoice({ hidden, change: change2 }) {
  return /* @__PURE__ */ u4("details", { class: "choice", children: [
    /* @__PURE__ */ u4("summary", { children: "Columns" }),
    /* @__PURE__ */ u4("div", { children: CHOICES.map((name) => /* @__PURE__ */ u4("label", { children: [
      /* @__PURE__ */ u4(
        "input",
        {
          type: "checkbox",
          checked: !hidden.has(name),
          onChange: () => {
            const next = new Set(hidden);
            if (!next.delete(name)) next.add(name);
            change2(next);
          }
        }
      ),
      name
    ] }, name)) })
  ] });
}

// src/services.tsx
var POLL_MS3 = 2e3;
function Services() {
  const list = useLive((signal) => call("GET /services", { signal }), POLL_MS3, []);
  const services = list.data?.services;
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h1", { children: "Services" }),
    /* @__PURE__ */ u4(Problem, { error: list.error }),
    services === void 0 ? /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" }) : services.length ? /* @__PURE__ */ u4(
      Table,
      {
        label: "Services",
        rows: services,
        id: (service) => service.id,
        columns: [
          { name: "Service", of: (service) => /* @__PURE__ */ u4("a", { href: `#/services/${encodeURIComponent(service.id)}`, children: service.name }) },
          { name: "State", of: (service) => /* @__PURE__ */ u4(State, { state: service.state }) },
          { name: "Ready", right: true, of: (service) => `${service.ready} of ${service.replicas}` },
          { name: "Restarts", right: true, of: (service) => service.restarts },
          { name: "User", of: (service) => /* @__PURE__ */ u4(Who, { name: service.user }) },
          { name: "Tenant", of: (service) => service.tenant_id },
          { name: "GPUs each", right: true, of: (service) => trim(service.gpu_count) },
          { name: "Problem", grow: true, of: (service) => /* @__PURE__ */ u4("span", { title: service.problem, children: service.problem }) }
        ]
      }
    ) : /* @__PURE__ */ u4(Empty, { title: "You have no services", children: /* @__PURE__ */ u4("p", { children: [
      "A service keeps replicas of a program running: ",
      /* @__PURE__ */ u4("code", { children: "tgpu service create --name llama --replicas 2 --gpus 1 --http /health -- vllm serve …" })
    ] }) })
  ] });
}
function ServicePage({ id }) {
  const path = { service: id };
  const found = useLive((signal) => call("GET /services/{service}", { path, signal }), POLL_MS3, [id]);
  const endpoints = useLive((signal) => call("GET /services/{service}/endpoints", { path, signal }), POLL_MS3, [id]);
  const service = found.data;
  if (!service) return found.error ? /* @__PURE__ */ u4(Problem, { error: found.error }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" });
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("p", { class: "crumbs", children: [
      /* @__PURE__ */ u4("a", { href: "#/services", children: "Services" }),
      " / ",
      service.name
    ] }),
    /* @__PURE__ */ u4("div", { class: "title-row", children: [
      /* @__PURE__ */ u4("h1", { children: [
        service.name,
        " ",
        /* @__PURE__ */ u4(State, { state: service.state })
      ] }),
      /* @__PURE__ */ u4(Actions2, { service, refresh: found.refresh })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: found.error }),
    service.problem ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: service.problem }) : null,
    /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Facts", children: [
      /* @__PURE__ */ u4(
        Facts,
        {
          of: [
            ["Ready", `${service.ready} of ${plural(service.replicas, "replica")}`],
            ["User", /* @__PURE__ */ u4(Who, { name: service.user })],
            ["Tenant", service.tenant_id],
            ["GPUs of a replica", trim(service.gpu_count)],
            ["Priority", `${service.priority}${service.preemptible ? ", preemptible" : ""}`],
            ["Port", service.port || "a free one for each replica"],
            ["Readiness probe", probeText(service.readiness)],
            ["Restart", `${service.restart.policy}, after ${service.restart.backoff_seconds} s, at most ${service.restart.max_backoff_seconds} s`],
            ["Changed", `${time(service.changed_at)}, generation ${service.generation}`],
            ["Updated replicas", service.updated < service.replicas ? `${service.updated} of ${service.replicas}` : ""],
            ["Image", service.image]
          ]
        }
      ),
      service.command.length ? /* @__PURE__ */ u4(Code, { text: line(service.command) }) : null
    ] }),
    /* @__PURE__ */ u4("h2", { children: "Replicas" }),
    /* @__PURE__ */ u4(Table, { label: "Replicas", rows: service.members, id: (one) => `${one.replica} ${one.job_id}`, columns: REPLICA_COLUMNS }),
    /* @__PURE__ */ u4("h2", { children: "Endpoints" }),
    endpoints.data?.endpoints.length ? /* @__PURE__ */ u4(
      Table,
      {
        label: "Endpoints",
        rows: endpoints.data.endpoints,
        id: (one) => `${one.replica} ${one.job_id}`,
        columns: [
          { name: "Address", of: (one) => /* @__PURE__ */ u4("span", { class: "mono", children: `${one.host}:${one.port}` }) },
          { name: "Replica", right: true, of: (one) => one.replica },
          { name: "Node", of: (one) => one.node },
          { name: "Job", grow: true, of: (one) => /* @__PURE__ */ u4(JobLink, { id: one.job_id }) }
        ]
      }
    ) : /* @__PURE__ */ u4("p", { class: "muted", children: "No replica is ready yet." })
  ] });
}
var REPLICA_COLUMNS = [
  { name: "Replica", right: true, of: (one) => one.replica },
  { name: "State", of: (one) => /* @__PURE__ */ u4(State, { state: one.ready ? "ready" : one.state }) },
  { name: "Job", of: (one) => one.job_id ? /* @__PURE__ */ u4(JobLink, { id: one.job_id }) : "–" },
  { name: "Node", of: (one) => one.node || "–" },
  { name: "Address", of: (one) => /* @__PURE__ */ u4("span", { class: "mono", children: one.port ? `${one.host}:${one.port}` : "–" }) },
  { name: "Since", right: true, of: (one) => since(one.since) },
  { name: "Restarts", right: true, of: (one) => one.restarts },
  { name: "Version", of: (one) => one.is_current ? "current" : "earlier" },
  { name: "Probe and last end", grow: true, of: (one) => /* @__PURE__ */ u4("span", { title: one.detail, children: [one.detail, one.last_end].filter(Boolean).join(" · ") }) }
];
function probeText(probe) {
  if (!probe) return "none: a replica is ready when it runs";
  const what = { http: `HTTP ${probe.path}`, command: line(probe.command) }[probe.kind] ?? "TCP connection";
  return `${what}, every ${probe.interval_seconds} s, ${plural(probe.failures, "failure")} to be not ready, first within ${probe.grace_seconds} s`;
}
function Actions2({ service, refresh }) {
  const path = { service: service.id };
  const scaleTo = (replicas) => attempt(
    () => call("POST /services/{service}/scale", { path, body: { replicas } }),
    `${service.name} has ${plural(replicas, "replica")} now.`,
    () => void attempt(() => call("POST /services/{service}/scale", { path, body: { replicas: service.replicas } }), `${service.name} has ${plural(service.replicas, "replica")} again.`).then(refresh)
  );
  const scale = async () => {
    const answer = await ask(`Scale ${service.name}?`, "Replicas are started or stopped until there are this many.", "Scale", {
      input: { label: "Replicas", value: String(service.replicas) }
    });
    if (answer === null || !/^\d+$/.test(answer.trim())) return;
    await scaleTo(Number(answer));
    refresh();
  };
  const remove = async () => {
    if (await ask(`Delete ${service.name}?`, "All its replicas are stopped.", "Delete", { danger: true }) === null) return;
    if (await attempt(() => call("DELETE /services/{service}", { path }), `${service.name} is being deleted.`)) location.hash = "#/services";
  };
  return /* @__PURE__ */ u4("div", { class: "buttons", children: [
    /* @__PURE__ */ u4("button", { type: "button", onClick: () => void scale(), children: "Scale" }),
    /* @__PURE__ */ u4("button", { type: "button", class: "danger", onClick: () => void remove(), children: "Delete" })
  ] });
}

// src/submit.tsx
var CHECK_AFTER_MS = 400;
var ASK_AFTER_MS = 900;
var MOST_PREVIEWED = 60;
var GPU_STEPS = [1, 2, 4, 8];
var START = { command: ["python", "train.py"], gpu_count: 1, max_runtime_minutes: 240 };
function Submit({ from }) {
  const [file, setFile] = d2(jobFile(START));
  const [command, setCommand] = d2(line(START.command ?? []));
  const [sweep, setSweep] = d2("");
  const [left, setLeft] = d2([]);
  const [error, setError] = d2(null);
  const [sent, setSent] = d2([]);
  const [isSending, setSending] = d2(false);
  h2(() => {
    if (!from) return;
    void call("GET /jobs/{job_id}", { path: { job_id: from } }).then((job) => {
      if (job.redacted) throw new ApiError(403, "forbidden", `${from} belongs to ${job.user}; only its own jobs can a user submit again`);
      const found = requestOf(job);
      setFile(jobFile(found.body));
      setCommand(line(found.body.command ?? []));
      setLeft(found.left);
    }).catch((problem) => setError(problem instanceof ApiError ? problem : null));
  }, [from]);
  const read = T2(() => readFile(file), [file]);
  const body = read.body;
  const params = T2(() => readSweep(sweep), [sweep]);
  const isSweep = Object.keys(params.found).length > 0;
  const jobs = T2(() => body && isSweep ? combinations(params.found).map((values) => filledIn(body, values, "preview")) : [], [body, params, isSweep]);
  const first = isSweep ? jobs[0] ?? null : body;
  const checked = useChecked(first);
  const change2 = (fields) => {
    const made = { ...body ?? {}, ...fields };
    for (const [name, value] of Object.entries(made)) if (value === void 0 || value === "" || Array.isArray(value) && value.length === 0 && name !== "command") delete made[name];
    setFile(jobFile(made));
  };
  const submit = async () => {
    if (!body) return;
    setSending(true);
    setError(null);
    try {
      if (isSweep) {
        const name = sweepName(body.name ?? "sweep");
        const answer = await call("POST /jobs/bulk", { body: combinations(params.found).map((values) => filledIn(body, values, body.sweep || name)) });
        setSent(answer.job_ids);
        notify(`Submitted ${plural(answer.count, "job")}.`);
      } else {
        const answer = await call("POST /jobs", { body });
        const id = "job_id" in answer ? answer.job_id : "";
        setSent([id]);
        notify(`Submitted ${id}.`);
      }
    } catch (problem) {
      setError(problem instanceof ApiError ? problem : new ApiError(0, "", "the server could not be reached; it is unknown whether it took the job"));
    }
    setSending(false);
  };
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h1", { children: from ? `Submit ${from} again` : "Submit" }),
    left.length ? /* @__PURE__ */ u4("p", { class: "note", children: [
      "Not taken over: ",
      left.join(", "),
      "."
    ] }) : null,
    /* @__PURE__ */ u4(Problem, { error }),
    sent.length ? /* @__PURE__ */ u4("p", { class: "note note-good", role: "status", children: [
      "Submitted",
      " ",
      sent.slice(0, 5).map((id) => /* @__PURE__ */ u4("span", { children: [
        /* @__PURE__ */ u4(JobLink, { id }),
        " "
      ] }, id)),
      sent.length > 5 ? `and ${count(sent.length - 5)} more` : ""
    ] }) : null,
    /* @__PURE__ */ u4("div", { class: "two", children: [
      /* @__PURE__ */ u4(
        "form",
        {
          class: "card",
          onSubmit: (event) => {
            event.preventDefault();
            void submit();
          },
          children: [
            /* @__PURE__ */ u4(
              Fields,
              {
                body,
                command,
                setCommand: (text) => {
                  setCommand(text);
                  try {
                    change2({ command: words(text) });
                  } catch {
                  }
                },
                change: change2
              }
            ),
            /* @__PURE__ */ u4("label", { children: [
              "Sweep: one parameter in a line, as lr=0.1,0.01; use it as ",
              "{lr}",
              " in the command",
              /* @__PURE__ */ u4("textarea", { rows: 2, value: sweep, spellcheck: false, onInput: (event) => setSweep(event.currentTarget.value) })
            ] }),
            params.problem ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: params.problem }) : null,
            /* @__PURE__ */ u4("div", { class: "buttons", children: /* @__PURE__ */ u4("button", { type: "submit", class: "primary", disabled: !body || isSending || checked.error !== null || params.problem !== "", children: isSweep ? `Submit ${plural(jobs.length, "job")}` : "Submit" }) })
          ]
        }
      ),
      /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Job file", children: [
        /* @__PURE__ */ u4("label", { children: [
          "Job file (the fields of the REST API)",
          /* @__PURE__ */ u4(
            "textarea",
            {
              rows: 14,
              value: file,
              spellcheck: false,
              onInput: (event) => {
                setFile(event.currentTarget.value);
                const { body: typed } = readFile(event.currentTarget.value);
                if (typed?.command) setCommand(line(typed.command));
              }
            }
          )
        ] }),
        /* @__PURE__ */ u4(Check, { problem: read.problem, checked })
      ] })
    ] }),
    first && !read.problem ? /* @__PURE__ */ u4(Answers, { body: first, isValid: checked.valid !== null, change: change2 }) : null,
    isSweep && body ? /* @__PURE__ */ u4(Preview, { params: params.found, jobs }) : null,
    body ? /* @__PURE__ */ u4(Printed, { body, params: params.found }) : null
  ] });
}
function readFile(text) {
  try {
    const found = JSON.parse(text);
    if (found === null || typeof found !== "object" || Array.isArray(found)) return { body: null, problem: "a job file is one object, in braces" };
    const { command } = found;
    if (command !== void 0 && !(Array.isArray(command) && command.every((word) => typeof word === "string"))) return { body: null, problem: "command is a list of texts" };
    return { body: found, problem: "" };
  } catch (error) {
    return { body: null, problem: error instanceof Error ? error.message : "not JSON" };
  }
}
function readSweep(text) {
  try {
    return { found: readParams(text), problem: "" };
  } catch (error) {
    return { found: {}, problem: error instanceof Error ? error.message : "" };
  }
}
function useChecked(body) {
  const text = body ? JSON.stringify(body) : "";
  const [state, setState] = d2({ valid: null, error: null, text: "" });
  h2(() => {
    if (!text) return void 0;
    const stop = new AbortController();
    const timer = window.setTimeout(() => {
      call("POST /jobs/validate", { body: JSON.parse(text), signal: stop.signal }).then((valid) => setState({ valid, error: null, text })).catch((error) => {
        if (error instanceof ApiError) setState({ valid: null, error, text });
      });
    }, CHECK_AFTER_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text]);
  return state.text === text ? state : { valid: null, error: null };
}
function Check({ problem, checked }) {
  const { valid, error } = checked;
  return /* @__PURE__ */ u4("div", { "aria-live": "polite", class: "check", children: problem ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: [
    "Not a job yet: ",
    problem
  ] }) : error ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: error.message }) : valid ? /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("p", { class: "note note-good", children: [
      "Would be accepted",
      valid.position ? `, as number ${valid.position} of the queue` : "",
      ".",
      " ",
      valid.expected_start ? `Expected start ${startTime(valid)}${valid.expected_end ? `, end ${time(valid.expected_end)}` : ""}.` : valid.start_unknown ? `Its start is unknown: ${valid.start_unknown}.` : ""
    ] }),
    valid.warnings.map((text) => /* @__PURE__ */ u4("p", { class: "note", children: text }, text))
  ] }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Checking…" }) });
}
function Fields({ body, command, setCommand, change: change2 }) {
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 0, []);
  const models = [...new Set((nodes.data?.nodes ?? []).flatMap((node) => node.gpu_models))].sort();
  let problem = "";
  try {
    words(command);
  } catch (error) {
    problem = error instanceof Error ? error.message : "";
  }
  const number = (text) => text === "" || Number.isNaN(Number(text)) ? void 0 : Number(text);
  return /* @__PURE__ */ u4("div", { class: "form", children: [
    /* @__PURE__ */ u4("label", { class: "wide", children: [
      "Command",
      /* @__PURE__ */ u4("input", { class: "mono", value: command, spellcheck: false, disabled: !body, onInput: (event) => setCommand(event.currentTarget.value) })
    ] }),
    problem ? /* @__PURE__ */ u4("p", { class: "note note-bad wide", children: problem }) : null,
    /* @__PURE__ */ u4("label", { children: [
      "Name",
      /* @__PURE__ */ u4("input", { value: body?.name ?? "", disabled: !body, onInput: (event) => change2({ name: event.currentTarget.value }) })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "GPUs",
      /* @__PURE__ */ u4("input", { type: "number", min: 0, step: 0.01, value: body?.gpu_count ?? "", disabled: !body, onInput: (event) => change2({ gpu_count: number(event.currentTarget.value) }) })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "GPU model",
      /* @__PURE__ */ u4("select", { value: body?.gpu_models?.[0] ?? "", disabled: !body, onChange: (event) => change2({ gpu_models: event.currentTarget.value ? [event.currentTarget.value] : [] }), children: [
        /* @__PURE__ */ u4("option", { value: "", children: "any" }),
        [.../* @__PURE__ */ new Set([...models, ...body?.gpu_models ?? []])].map((model) => /* @__PURE__ */ u4("option", { value: model, children: model }, model))
      ] })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "Time limit (minutes)",
      /* @__PURE__ */ u4("input", { type: "number", min: 1, value: body?.max_runtime_minutes ?? "", disabled: !body, onInput: (event) => change2({ max_runtime_minutes: number(event.currentTarget.value) }) })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "Priority",
      /* @__PURE__ */ u4(
        "select",
        {
          value: String(body?.priority ?? 750),
          disabled: !body,
          onChange: (event) => change2({ priority: event.currentTarget.value === "750" ? void 0 : number(event.currentTarget.value) ?? event.currentTarget.value }),
          children: [
            [["250", "low"], ["750", "normal"], ["1500", "high"], ["2500", "urgent"]].map(([value, name]) => /* @__PURE__ */ u4("option", { value, children: name }, value)),
            ["250", "750", "1500", "2500"].includes(String(body?.priority ?? 750)) ? null : /* @__PURE__ */ u4("option", { value: String(body?.priority), children: String(body?.priority) })
          ]
        }
      )
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "CPU cores",
      /* @__PURE__ */ u4("input", { type: "number", min: 0, step: 0.5, value: body?.cpu_cores ?? "", disabled: !body, onInput: (event) => change2({ cpu_cores: number(event.currentTarget.value) }) })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "Memory (MB)",
      /* @__PURE__ */ u4("input", { type: "number", min: 0, value: body?.memory_mb ?? "", disabled: !body, onInput: (event) => change2({ memory_mb: number(event.currentTarget.value) }) })
    ] }),
    /* @__PURE__ */ u4("label", { class: "wide", children: [
      "Directory",
      /* @__PURE__ */ u4("input", { class: "mono", value: body?.working_directory ?? "", spellcheck: false, disabled: !body, onInput: (event) => change2({ working_directory: event.currentTarget.value }) })
    ] })
  ] });
}
function variantsOf(body, models) {
  const gpus = body.gpu_count ?? 0;
  const minutes = body.max_runtime_minutes;
  const found = [{ label: "as written", fields: {} }];
  for (const other2 of GPU_STEPS) if (other2 !== gpus) found.push({ label: plural(other2, "GPU"), fields: { gpu_count: other2 } });
  if (minutes && minutes > 1) found.push({ label: `limit ${trim(minutes / 2, 1)} min`, fields: { max_runtime_minutes: minutes / 2 } });
  const other = models.find((model) => !body.gpu_models?.includes(model));
  if (other && models.length > 1) found.push({ label: other, fields: { gpu_models: [other] } });
  found.push(body.priority === 1500 || body.priority === "high" ? { label: "priority normal", fields: { priority: 750 } } : { label: "priority high", fields: { priority: 1500 } });
  return found.slice(0, 8);
}
function Answers({ body, isValid, change: change2 }) {
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 0, []);
  const [again, setAgain] = d2(0);
  const [state, setState] = d2({ answer: null, variants: [], error: null, isBusy: false });
  const text = JSON.stringify(body);
  const models = [...new Set((nodes.data?.nodes ?? []).flatMap((node) => node.gpu_models))].sort().join("\n");
  h2(() => {
    if (!isValid) return void 0;
    const stop = new AbortController();
    let retry = 0;
    const timer = window.setTimeout(() => {
      const job = JSON.parse(text);
      const variants = variantsOf(job, models.split("\n"));
      setState((old) => ({ ...old, isBusy: true }));
      call("POST /what-if", { body: { jobs: variants.map((one) => ({ ...job, ...one.fields })) }, signal: stop.signal }).then((answer) => setState({ answer, variants, error: null, isBusy: false })).catch((error) => {
        if (error instanceof ApiError && error.status === 429) retry = window.setTimeout(() => setAgain((old) => old + 1), 1e3);
        else if (error instanceof ApiError) setState((old) => ({ ...old, error, isBusy: false }));
      });
    }, ASK_AFTER_MS);
    return () => {
      clearTimeout(timer);
      clearTimeout(retry);
      stop.abort();
    };
  }, [text, models, isValid, again]);
  const rows = (state.answer?.jobs ?? []).flatMap((answer, place2) => {
    const variant = state.variants[place2];
    return variant ? [{ ...variant, answer }] : [];
  });
  const currency = state.answer?.currency ?? "";
  const columns = [
    { name: "With", of: (row) => row.label },
    { name: "Expected start", of: ({ answer }) => startText(answer) },
    { name: "Expected end", of: ({ answer }) => answer.error ? "" : answer.expected_end ? time(answer.expected_end) : answer.expected_start && answer.latest_end ? `by ${time(answer.latest_end)}` : "unknown" },
    { name: "Cost of GPUs", of: ({ answer }) => !answer.cost ? "–" : `${trim(answer.cost)} ${currency}`, right: true },
    { name: "Delays", of: ({ answer }) => answer.effect?.later ? plural(answer.effect.later, "job") : answer.error ? "" : "nobody" },
    { name: "Where, or why not", of: ({ answer }) => /* @__PURE__ */ u4("span", { class: "muted", children: answer.error || reasonText(answer) }), wrap: true },
    {
      name: "",
      of: (row) => Object.keys(row.fields).length && !row.answer.error ? /* @__PURE__ */ u4("button", { type: "button", class: "small", "aria-label": `Take ${row.label}`, onClick: () => change2(row.fields), children: "Take" }) : null
    }
  ];
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Side by side", "aria-busy": state.isBusy, children: [
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      /* @__PURE__ */ u4("h2", { children: "Side by side" }),
      /* @__PURE__ */ u4("button", { type: "button", class: "small", onClick: () => setAgain(again + 1), children: "Ask again" }),
      /* @__PURE__ */ u4("span", { class: "muted", role: "status", children: state.isBusy ? "The engine rolls the cluster forward…" : "" })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: state.error }),
    rows.length ? /* @__PURE__ */ u4(Table, { label: "Answers", columns, rows, id: (row) => row.label }) : /* @__PURE__ */ u4("p", { class: "muted", children: "As soon as the job is valid, the engine answers here when it and its variants would start." }),
    state.answer?.cut.map((text2) => /* @__PURE__ */ u4("p", { class: "note", children: text2 }, text2))
  ] });
}
function startText(answer) {
  if (answer.error) return "rejected";
  if (!answer.expected_start) return "unknown";
  return `${answer.depends_on.length ? "about " : ""}${Date.parse(answer.expected_start) - Date.now() < 5e3 ? "now" : startTime(answer)}`;
}
function reasonText(answer) {
  if (answer.start_unknown) return answer.start_unknown;
  if (answer.depends_on.length) return `depends on the unknown end of ${answer.depends_on.join(", ")}`;
  return answer.places.map((place2) => `${place2.node}[${place2.gpu_ids.join(",")}]`).join(" ");
}
function Preview({ params, jobs }) {
  const names = Object.keys(params);
  const columns = [...names.map((name) => ({ name, of: (job) => job.params?.[name] ?? "" })), { name: "Command", of: (job) => /* @__PURE__ */ u4("span", { class: "mono", children: line(job.command ?? []) }), grow: true }];
  const [rows, across] = names;
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Sweep", children: [
    /* @__PURE__ */ u4("h2", { children: [
      "Sweep of ",
      plural(jobs.length, "job")
    ] }),
    names.length === 2 && rows && across ? /* @__PURE__ */ u4("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Grid", children: /* @__PURE__ */ u4("table", { children: [
      /* @__PURE__ */ u4("thead", { children: /* @__PURE__ */ u4("tr", { children: [
        /* @__PURE__ */ u4("th", { scope: "col", children: [
          rows,
          " \\ ",
          across
        ] }),
        params[across]?.map((value) => /* @__PURE__ */ u4("th", { scope: "col", children: value }, value))
      ] }) }),
      /* @__PURE__ */ u4("tbody", { children: params[rows]?.map((value) => /* @__PURE__ */ u4("tr", { children: [
        /* @__PURE__ */ u4("th", { scope: "row", children: value }),
        params[across]?.map((other) => /* @__PURE__ */ u4("td", { class: "mono", children: line(jobs.find((job) => job.params?.[rows] === value && job.params[across] === other)?.command ?? []) }, other))
      ] }, value)) })
    ] }) }) : /* @__PURE__ */ u4(Table, { label: "Grid", columns, rows: jobs.slice(0, MOST_PREVIEWED), id: (job) => JSON.stringify(job.params) }),
    names.length !== 2 && jobs.length > MOST_PREVIEWED ? /* @__PURE__ */ u4("p", { class: "muted", children: [
      "and ",
      count(jobs.length - MOST_PREVIEWED),
      " more"
    ] }) : null
  ] });
}
function Printed({ body, params }) {
  const command = tgpuLine(body, params);
  return /* @__PURE__ */ u4("div", { class: "two", children: [
    /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Command line", children: [
      /* @__PURE__ */ u4("h2", { children: "As a command" }),
      /* @__PURE__ */ u4(Code, { text: command ?? `tgpu submit job.json   # with this file:
${jobFile(body)}` })
    ] }),
    /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Python", children: [
      /* @__PURE__ */ u4("h2", { children: "As Python" }),
      /* @__PURE__ */ u4(Code, { text: pythonText(body, params) })
    ] })
  ] });
}

// src/sweeps.tsx
var PAGE2 = 1e3;
var MOST_JOBS = 5e3;
var STATES = ["running", "scheduled", "pending", "preempted", "failed", "cancelled", "completed"];
var UNFINISHED = /* @__PURE__ */ new Set(["running", "scheduled", "pending", "preempted"]);
function Sweeps() {
  const list = useLive((signal) => call("GET /sweeps", { signal }), 4e3, []);
  const sweeps = list.data?.sweeps;
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h1", { children: "Sweeps" }),
    /* @__PURE__ */ u4(Problem, { error: list.error }),
    sweeps === void 0 ? /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" }) : sweeps.length ? /* @__PURE__ */ u4(
      Table,
      {
        label: "Your sweeps",
        rows: sweeps,
        id: (sweep) => sweep.name,
        columns: [
          { name: "Sweep", of: (sweep) => /* @__PURE__ */ u4("a", { href: `#/sweeps/${encodeURIComponent(sweep.name)}`, children: sweep.name }) },
          { name: "Jobs", right: true, of: (sweep) => count(sweep.jobs) },
          { name: "States", of: (sweep) => /* @__PURE__ */ u4(States, { of: sweep.states }) },
          { name: "Submitted", of: (sweep) => time(sweep.submitted_at) },
          { name: "From", grow: true, of: (sweep) => /* @__PURE__ */ u4(JobLink, { id: sweep.first_job_id }) }
        ]
      }
    ) : /* @__PURE__ */ u4(Empty, { title: "You have no sweeps", children: /* @__PURE__ */ u4("p", { children: [
      "A sweep is one job for each combination of parameters: ",
      /* @__PURE__ */ u4("code", { children: "tgpu submit --param lr=0.1,0.01 --param seed=1,2,3 -- python train.py" }),
      ", or the page",
      " ",
      /* @__PURE__ */ u4("a", { href: "#/submit", children: "Submit" }),
      "."
    ] }) })
  ] });
}
function States({ of }) {
  return /* @__PURE__ */ u4("span", { class: "states", children: STATES.filter((state) => of[state]).map((state) => /* @__PURE__ */ u4("span", { class: `state state-${state}`, children: `${count(of[state] ?? 0)} ${state}` }, state)) });
}
async function jobsOf(sweep, signal) {
  const jobs = [];
  let cursor = "";
  let total = 0;
  while (cursor !== null && jobs.length < MOST_JOBS) {
    const page = await call("GET /jobs", { query: { sweep, user: "@me", limit: PAGE2, cursor }, signal });
    jobs.push(...page.jobs);
    total = Math.max(total, page.total);
    cursor = page.next_cursor;
  }
  return { jobs, total };
}
function SweepPage({ name }) {
  const [busyMs, setBusyMs] = d2(3e3);
  const found = useLive(
    async (signal) => {
      const answer = await jobsOf(name, signal);
      setBusyMs(answer.jobs.some((job) => UNFINISHED.has(job.state)) ? answer.jobs.length > PAGE2 ? 15e3 : 3e3 : 3e4);
      return answer;
    },
    busyMs,
    [name, busyMs]
  );
  const jobs = found.data?.jobs ?? [];
  const states = {};
  for (const job of jobs) states[job.state] = (states[job.state] ?? 0) + 1;
  const failed = jobs.filter((job) => job.state === "failed").map((job) => job.id);
  const waiting = jobs.filter((job) => UNFINISHED.has(job.state)).map((job) => job.id);
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("p", { class: "crumbs", children: [
      /* @__PURE__ */ u4("a", { href: "#/sweeps", children: "Sweeps" }),
      " / ",
      name
    ] }),
    /* @__PURE__ */ u4("div", { class: "title-row", children: [
      /* @__PURE__ */ u4("h1", { children: name }),
      /* @__PURE__ */ u4("div", { class: "buttons", children: [
        failed.length ? /* @__PURE__ */ u4("button", { type: "button", onClick: () => void act("retry", failed, found.refresh), children: `Retry ${plural(failed.length, "failed job")}` }) : null,
        waiting.length ? /* @__PURE__ */ u4("button", { type: "button", class: "danger", onClick: () => void act("cancel", waiting, found.refresh), children: `Cancel ${plural(waiting.length, "unfinished job")}` }) : null
      ] })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: found.error }),
    found.data === null ? found.error ? null : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" }) : jobs.length === 0 ? /* @__PURE__ */ u4(Empty, { title: "There is no such sweep of yours" }) : /* @__PURE__ */ u4(S, { children: [
      /* @__PURE__ */ u4("p", { children: /* @__PURE__ */ u4(States, { of: states }) }),
      found.data.total > jobs.length ? /* @__PURE__ */ u4("p", { class: "note", children: `The newest ${count(jobs.length)} of ${count(found.data.total)} jobs are shown.` }) : null,
      /* @__PURE__ */ u4(Grid, { jobs })
    ] })
  ] });
}
function byValue(one, other) {
  const [a4, b4] = [Number(one), Number(other)];
  return Number.isNaN(a4) || Number.isNaN(b4) ? one.localeCompare(other, void 0, { numeric: true }) : a4 - b4;
}
function cellsOf(jobs, down, across) {
  const rows = /* @__PURE__ */ new Map();
  const columns = /* @__PURE__ */ new Set();
  for (const job of jobs) {
    const values = down.map((name) => job.params[name] ?? "");
    const key = JSON.stringify(values);
    const row = rows.get(key) ?? { key, values, cells: /* @__PURE__ */ new Map() };
    rows.set(key, row);
    const column = across ? job.params[across] ?? "" : "";
    columns.add(column);
    row.cells.set(column, [job, ...row.cells.get(column) ?? []]);
  }
  const order = (one, other) => one.map((value, place2) => byValue(value, other[place2] ?? "")).find((sign2) => sign2 !== 0) ?? 0;
  return { columns: [...columns].sort(byValue), rows: [...rows.values()].sort((one, other) => order(one.values, other.values)) };
}
function columnParameter(jobs, names) {
  const last = names.at(-1);
  if (names.length < 2 || !last) return "";
  const cells = cellsOf(jobs, names.slice(0, -1), last);
  return cells.rows.length * cells.columns.length <= 2 * jobs.length ? last : "";
}
function Grid({ jobs }) {
  const names = T2(() => [...new Set(jobs.flatMap((job) => Object.keys(job.params)))], [jobs]);
  const [chosen, setChosen] = d2(null);
  const across = chosen ?? columnParameter(jobs, names);
  const down = names.filter((name) => name !== across);
  const { columns, rows } = T2(() => cellsOf(jobs, down, across), [jobs, across]);
  return /* @__PURE__ */ u4(S, { children: [
    names.length > 1 ? /* @__PURE__ */ u4("div", { class: "toolbar", children: /* @__PURE__ */ u4("label", { class: "inline", children: [
      "Columns",
      /* @__PURE__ */ u4("select", { value: across, onChange: (event) => setChosen(event.currentTarget.value), children: [
        /* @__PURE__ */ u4("option", { value: "", children: "none" }),
        names.map((name) => /* @__PURE__ */ u4("option", { value: name, children: name }, name))
      ] })
    ] }) }) : null,
    /* @__PURE__ */ u4("div", { class: "scroll sweep", tabIndex: 0, role: "region", "aria-label": "Jobs by parameter", children: /* @__PURE__ */ u4("table", { children: [
      /* @__PURE__ */ u4("thead", { children: /* @__PURE__ */ u4("tr", { children: [
        down.map((name) => /* @__PURE__ */ u4("th", { scope: "col", children: name }, name)),
        columns.map((value) => /* @__PURE__ */ u4("th", { scope: "col", children: across ? `${across} = ${value}` : "Job" }, value))
      ] }) }),
      /* @__PURE__ */ u4("tbody", { children: rows.map((row) => /* @__PURE__ */ u4("tr", { children: [
        row.values.map((value, place2) => /* @__PURE__ */ u4("th", { scope: "row", children: value }, place2)),
        columns.map((column) => /* @__PURE__ */ u4("td", { children: (row.cells.get(column) ?? []).map((job) => /* @__PURE__ */ u4(Cell, { job }, job.id)) }, column))
      ] }, row.key)) })
    ] }) })
  ] });
}
function Cell({ job }) {
  const ran = job.started_at ? duration(((job.ended_at ? Date.parse(job.ended_at) : Date.now()) - Date.parse(job.started_at)) / 1e3) : "";
  return /* @__PURE__ */ u4("a", { class: `cell cell-${job.state}`, href: `#/jobs/${job.id}`, title: [job.id, job.reason].filter(Boolean).join(": "), children: [
    /* @__PURE__ */ u4(State, { state: job.hold && job.state === "pending" ? "held" : job.state }),
    /* @__PURE__ */ u4("span", { class: "muted", children: job.state === "failed" && job.exit_code !== null ? `exit ${job.exit_code}` : ran })
  ] });
}

// src/whatif.tsx
var POLICIES = ["fair", "fifo", "sjf", "skip", "easy", "conservative", "short", "best_fit", "fgd", "balance", "packing"];
var EMPTY = { drained: [], added: "", like: "", gpus: "", reservedFor: "default", inHours: "1", forHours: "4", tenant: "", quota: "", policy: "" };
function WhatIf() {
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 0, []);
  const tenants = useLive((signal) => call("GET /tenants", { signal }), 0, []);
  const [draft, setDraft] = d2(EMPTY);
  const [state, setState] = d2({ answer: null, error: null, isBusy: false, asked: "" });
  const names = (nodes.data?.nodes ?? []).map((node) => node.id);
  const owners = [.../* @__PURE__ */ new Set(["default", ...(tenants.data?.tenants ?? []).map((tenant) => tenant.id)])];
  const set = (fields) => setDraft({ ...draft, ...fields });
  const request = requestOf2(draft, names[0] ?? "");
  const asked = describe(draft, names[0] ?? "");
  const ask2 = async () => {
    setState({ ...state, error: null, isBusy: true });
    try {
      setState({ answer: await call("POST /what-if", { body: request }), error: null, isBusy: false, asked });
    } catch (error) {
      setState({ answer: null, error: error instanceof ApiError ? error : new ApiError(0, "", "the server could not be reached"), isBusy: false, asked });
    }
  };
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h1", { children: "What if" }),
    /* @__PURE__ */ u4("p", { class: "muted", children: "The engine answers on a copy of the cluster. Nothing is changed, and scheduling does not wait." }),
    /* @__PURE__ */ u4(
      "form",
      {
        class: "card",
        onSubmit: (event) => {
          event.preventDefault();
          void ask2();
        },
        children: [
          /* @__PURE__ */ u4("div", { class: "sets", children: [
            /* @__PURE__ */ u4("fieldset", { children: [
              /* @__PURE__ */ u4("legend", { children: "Nodes" }),
              /* @__PURE__ */ u4("label", { children: [
                "Drained",
                /* @__PURE__ */ u4("select", { multiple: true, size: Math.min(5, Math.max(2, names.length)), onChange: (event) => set({ drained: [...event.currentTarget.selectedOptions].map((one) => one.value) }), children: names.map((name) => /* @__PURE__ */ u4("option", { value: name, selected: draft.drained.includes(name), children: name }, name)) })
              ] }),
              /* @__PURE__ */ u4("div", { class: "form", children: [
                /* @__PURE__ */ u4(Field, { label: "Added", value: draft.added, set: (added) => set({ added }) }),
                /* @__PURE__ */ u4(Select, { label: "Like", value: draft.like || (names[0] ?? ""), of: names, set: (like) => set({ like }) })
              ] })
            ] }),
            /* @__PURE__ */ u4("fieldset", { children: [
              /* @__PURE__ */ u4("legend", { children: "Reservation" }),
              /* @__PURE__ */ u4("div", { class: "form", children: [
                /* @__PURE__ */ u4(Field, { label: "GPUs", value: draft.gpus, set: (gpus) => set({ gpus }) }),
                /* @__PURE__ */ u4(Select, { label: "For tenant", value: draft.reservedFor, of: owners, set: (reservedFor) => set({ reservedFor }) }),
                /* @__PURE__ */ u4(Field, { label: "Begins in hours", value: draft.inHours, set: (inHours) => set({ inHours }) }),
                /* @__PURE__ */ u4(Field, { label: "Lasts hours", value: draft.forHours, set: (forHours) => set({ forHours }) })
              ] })
            ] }),
            /* @__PURE__ */ u4("fieldset", { children: [
              /* @__PURE__ */ u4("legend", { children: "Rules" }),
              /* @__PURE__ */ u4("div", { class: "form", children: [
                /* @__PURE__ */ u4(Select, { label: "Quota of tenant", value: draft.tenant, of: ["", ...owners], none: "none changes", set: (tenant) => set({ tenant }) }),
                /* @__PURE__ */ u4(Field, { label: "Quota in GPUs", value: draft.quota, hint: "no limit", set: (quota) => set({ quota }) }),
                /* @__PURE__ */ u4(Select, { label: "Policy", value: draft.policy, of: ["", ...POLICIES], none: "as it is", set: (policy) => set({ policy }) })
              ] })
            ] })
          ] }),
          /* @__PURE__ */ u4("div", { class: "buttons", children: [
            /* @__PURE__ */ u4("button", { type: "submit", class: "primary", disabled: !asked || state.isBusy, children: "Ask" }),
            /* @__PURE__ */ u4("button", { type: "button", onClick: () => setDraft(EMPTY), children: "Clear" }),
            /* @__PURE__ */ u4("span", { class: "muted", role: "status", children: state.isBusy ? "The engine rolls the cluster forward…" : asked || "Suppose something first." })
          ] })
        ]
      }
    ),
    /* @__PURE__ */ u4(Problem, { error: state.error }),
    state.answer ? /* @__PURE__ */ u4(Answer, { answer: state.answer, asked: state.asked }) : null
  ] });
}
function Field({ label, value, set, hint }) {
  return /* @__PURE__ */ u4("label", { children: [
    label,
    /* @__PURE__ */ u4("input", { type: "number", min: 0, step: "any", value, placeholder: hint ?? "", onInput: (event) => set(event.currentTarget.value) })
  ] });
}
function Select({ label, value, of, none, set }) {
  return /* @__PURE__ */ u4("label", { children: [
    label,
    /* @__PURE__ */ u4("select", { value, onChange: (event) => set(event.currentTarget.value), children: of.map((one) => /* @__PURE__ */ u4("option", { value: one, children: one || none }, one)) })
  ] });
}
function requestOf2(draft, firstNode) {
  const request = {};
  if (draft.drained.length) request.drain_nodes = draft.drained;
  if (Number(draft.added) > 0) request.add_nodes = { count: Number(draft.added), like: draft.like || firstNode };
  if (draft.policy) request.policy = draft.policy;
  if (draft.tenant) request.quotas = [{ tenant_id: draft.tenant, max_gpus: draft.quota === "" ? null : Number(draft.quota) }];
  if (Number(draft.gpus) > 0) {
    const start = Date.now() / 1e3 + Number(draft.inHours) * 3600;
    request.reservation = { gpus: Number(draft.gpus), tenant_id: draft.reservedFor, start, duration_minutes: Number(draft.forHours) * 60 };
  }
  return request;
}
function describe(draft, firstNode) {
  const parts = [];
  if (draft.drained.length) parts.push(`${draft.drained.join(", ")} drained`);
  if (Number(draft.added) > 0) parts.push(`${plural(Number(draft.added), "node")} like ${draft.like || firstNode} added`);
  if (draft.policy) parts.push(`policy ${draft.policy}`);
  if (draft.tenant) parts.push(`quota of ${draft.tenant}: ${draft.quota === "" ? "no limit" : plural(Number(draft.quota), "GPU")}`);
  if (Number(draft.gpus) > 0) parts.push(`${plural(Number(draft.gpus), "GPU")} reserved for ${draft.reservedFor} in ${draft.inHours} h, for ${draft.forHours} h`);
  return parts.join("; ");
}
function Answer({ answer, asked }) {
  const { effect } = answer;
  return /* @__PURE__ */ u4("section", { "aria-label": "Answer", children: [
    /* @__PURE__ */ u4("h2", { children: [
      "Supposed: ",
      asked
    ] }),
    answer.cut.map((text) => /* @__PURE__ */ u4("p", { class: "note", children: text }, text)),
    answer.reserved.length ? /* @__PURE__ */ u4("p", { class: "note", children: [
      "The reservation would get ",
      answer.reserved.map((place2) => `${place2.node}[${place2.gpu_ids.join(",")}]`).join(" "),
      "."
    ] }) : null,
    effect ? /* @__PURE__ */ u4(Effects, { effect, waiting: answer.waiting }) : null
  ] });
}
function moveText(seconds) {
  return `${duration(Math.abs(seconds))} ${seconds > 0 ? "later" : "earlier"}`;
}
function Effects({ effect, waiting }) {
  const figures = [
    [count(effect.earlier), effect.earlier ? `start earlier, ${duration(effect.gained_seconds)} in all` : "start earlier"],
    [count(effect.later), effect.later ? `start later, ${duration(effect.lost_seconds)} in all` : "start later"],
    [count(effect.compared - effect.earlier - effect.later), `of ${plural(waiting, "waiting job")} stay`]
  ];
  if (effect.started) figures.push([count(effect.started), "get an expected start"]);
  if (effect.stranded) figures.push([count(effect.stranded), "have none any more"]);
  const owners = [
    { name: "User", of: (one) => /* @__PURE__ */ u4(Who, { name: one.user }) },
    { name: "Tenant", of: (one) => one.tenant_id },
    { name: "In all", of: (one) => balance(one.lost_seconds - one.gained_seconds) },
    { name: "Earlier", of: (one) => count(one.earlier), right: true },
    { name: "Later", of: (one) => count(one.later), right: true }
  ];
  const moved = [
    { name: "Job", of: (one) => /* @__PURE__ */ u4(JobLink, { id: one.job_id }) },
    { name: "User", of: (one) => /* @__PURE__ */ u4(Who, { name: one.user }) },
    { name: "GPUs", of: (one) => trim(one.gpus), right: true },
    { name: "Before", of: (one) => one.before ? time(one.before) : "unknown" },
    { name: "After", of: (one) => one.after ? time(one.after) : "unknown" },
    { name: "Moves", of: (one) => one.seconds === null ? one.after ? "gets a start" : /* @__PURE__ */ u4("span", { class: "bad", children: "no start any more" }) : balance(one.seconds) },
    { name: "Sure", of: (one) => one.is_guess ? "depends on an unknown run time" : "", grow: true }
  ];
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4(Figures, { of: figures }),
    effect.moved.length ? /* @__PURE__ */ u4(S, { children: [
      effect.owners.length ? /* @__PURE__ */ u4(S, { children: [
        /* @__PURE__ */ u4("h2", { children: "Who loses and who gains" }),
        /* @__PURE__ */ u4(Table, { label: "Users", columns: owners, rows: effect.owners, id: (one) => `${one.tenant_id} ${one.user}` })
      ] }) : null,
      /* @__PURE__ */ u4("h2", { children: "Starts that move most" }),
      /* @__PURE__ */ u4(Table, { label: "Moved starts", columns: moved, rows: effect.moved, id: (one) => one.job_id })
    ] }) : /* @__PURE__ */ u4(Empty, { title: "No expected start moves" })
  ] });
}
function balance(seconds) {
  return /* @__PURE__ */ u4("span", { class: seconds > 0 ? "bad" : "good", children: moveText(seconds) });
}

// src/app.tsx
var PAGES = [
  { path: "cluster", name: "Cluster", key: "c", show: () => /* @__PURE__ */ u4(Cluster, {}) },
  { path: "jobs", name: "Queue", key: "q", show: (rest) => rest[0] ? /* @__PURE__ */ u4(JobPage, { id: rest[0] }, rest[0]) : /* @__PURE__ */ u4(Queue, {}) },
  { path: "plan", name: "Plan", key: "p", show: (rest) => /* @__PURE__ */ u4(Plan, { job: rest[0] ?? "" }, rest[0] ?? "") },
  { path: "submit", name: "Submit", key: "s", show: (rest) => /* @__PURE__ */ u4(Submit, { from: rest[0] ?? "" }, rest[0] ?? "") },
  { path: "sweeps", name: "Sweeps", key: "g", show: (rest) => rest[0] ? /* @__PURE__ */ u4(SweepPage, { name: rest[0] }, rest[0]) : /* @__PURE__ */ u4(Sweeps, {}) },
  { path: "services", name: "Services", key: "v", show: (rest) => rest[0] ? /* @__PURE__ */ u4(ServicePage, { id: rest[0] }, rest[0]) : /* @__PURE__ */ u4(Services, {}) },
  { path: "people", name: "People", key: "u", show: () => /* @__PURE__ */ u4(People, {}) },
  { path: "what-if", name: "What if", key: "w", show: () => /* @__PURE__ */ u4(WhatIf, {}), adminOnly: true },
  { path: "admin", name: "Admin", key: "a", show: (rest) => /* @__PURE__ */ u4(Admin, { tab: rest[0] ?? "", about: rest[1] ?? "" }, rest.join("/")) }
];
var KEYS = [
  ["/", "search"],
  ["j or ↓", "next row"],
  ["k or ↑", "previous row"],
  ["Enter", "open the row"],
  ["Space", "select the row"],
  ["x", "cancel the row or the selection"],
  ["h", "hold or release it"],
  ["?", "this list"],
  ["Esc", "close, or leave the search"]
];
var route = y3(readRoute());
function readRoute() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  return (parts.length ? parts : ["cluster"]).map(decodeURIComponent);
}
function App() {
  const [showsKeys, setShowsKeys] = d2(false);
  h2(() => {
    const follow2 = () => {
      route.value = readRoute();
      scrollTo(0, 0);
    };
    addEventListener("hashchange", follow2);
    return () => removeEventListener("hashchange", follow2);
  }, []);
  h2(() => {
    void call("GET /me").then((found) => {
      me.value = found;
    }).catch(() => void 0);
  }, [needsLogin.value]);
  h2(() => {
    const press = (event) => {
      const inField = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
      if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "?") {
        setShowsKeys(true);
        return;
      }
      const page2 = PAGES.find((one) => one.key.toUpperCase() === event.key);
      if (page2 && mayOpen(page2)) location.hash = `#/${page2.path}`;
      if (event.key === "/") {
        const search = document.querySelector("input[type=search]");
        if (search) {
          event.preventDefault();
          search.focus();
        }
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
  const [path, ...rest] = route.value;
  const page = PAGES.find((one) => one.path === path);
  h2(() => {
    document.title = `${rest[0] ?? page?.name ?? "not found"} · gpu-scheduler`;
  }, [route.value]);
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("a", { class: "skip", href: "#main", onClick: focusMain, children: "Skip to the content" }),
    /* @__PURE__ */ u4("header", { children: [
      /* @__PURE__ */ u4("a", { class: "brand", href: "#/cluster", children: [
        /* @__PURE__ */ u4("img", { src: "/dashboard/icon.svg", alt: "", width: "22", height: "22" }),
        "gpu-scheduler"
      ] }),
      /* @__PURE__ */ u4("nav", { "aria-label": "Pages", children: PAGES.filter(mayOpen).map((one) => /* @__PURE__ */ u4("a", { href: `#/${one.path}`, "aria-current": one.path === path ? "page" : void 0, children: one.name }, one.path)) }),
      /* @__PURE__ */ u4("div", { class: "self", children: [
        me.value ? /* @__PURE__ */ u4("span", { title: me.value.via, children: [
          me.value.user,
          /* @__PURE__ */ u4("span", { class: "muted", children: [
            " ",
            me.value.role
          ] })
        ] }) : null,
        /* @__PURE__ */ u4(Logout, {}),
        /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": "Keys", onClick: () => setShowsKeys(true), children: "?" })
      ] })
    ] }),
    online.value ? null : /* @__PURE__ */ u4("p", { class: "banner", role: "alert", children: "The server does not answer. The page shows what it last knew, and tries again." }),
    /* @__PURE__ */ u4("main", { id: "main", tabIndex: -1, children: needsLogin.value ? /* @__PURE__ */ u4(Login, {}) : page ? page.show(rest) : /* @__PURE__ */ u4(Empty, { title: "There is no such page" }) }),
    showsKeys ? /* @__PURE__ */ u4(KeyList, { close: () => setShowsKeys(false) }) : null,
    /* @__PURE__ */ u4(QuestionDialog, {}),
    /* @__PURE__ */ u4(Toasts, {})
  ] });
}
function mayOpen(page) {
  return !page.adminOnly || me.value?.role === "admin";
}
function focusMain(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}
function KeyList({ close }) {
  const dialog = A2(null);
  h2(() => dialog.current?.showModal(), []);
  return /* @__PURE__ */ u4("dialog", { ref: dialog, onClose: close, "aria-labelledby": "keys-title", children: [
    /* @__PURE__ */ u4("h2", { id: "keys-title", children: "Keys" }),
    /* @__PURE__ */ u4("dl", { class: "keys", children: [...KEYS, ...PAGES.filter(mayOpen).map((page) => [page.key.toUpperCase(), page.name])].map(([key, does]) => /* @__PURE__ */ u4("div", { children: [
      /* @__PURE__ */ u4("dt", { children: /* @__PURE__ */ u4("kbd", { children: key }) }),
      /* @__PURE__ */ u4("dd", { children: does })
    ] }, key)) }),
    /* @__PURE__ */ u4("div", { class: "buttons", children: /* @__PURE__ */ u4("button", { type: "button", class: "primary", onClick: () => dialog.current?.close(), children: "Close" }) })
  ] });
}

// src/report.tsx
function Report({ page }) {
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("header", { children: [
      /* @__PURE__ */ u4("span", { class: "brand", children: "gpu-scheduler" }),
      /* @__PURE__ */ u4("nav", { "aria-label": "Sections", children: page.sections.map((section) => /* @__PURE__ */ u4("a", { href: `#${anchor(section.name)}`, children: section.name }, section.name)) })
    ] }),
    /* @__PURE__ */ u4("main", { class: "report", children: [
      /* @__PURE__ */ u4("h1", { children: page.title }),
      /* @__PURE__ */ u4(Facts, { of: page.facts }),
      page.command ? /* @__PURE__ */ u4(Code, { text: page.command }) : null,
      page.sections.map((section) => /* @__PURE__ */ u4("section", { id: anchor(section.name), "aria-label": section.name, children: [
        /* @__PURE__ */ u4("h2", { children: section.name }),
        /* @__PURE__ */ u4("div", { class: "two", children: section.blocks.map((block, place2) => /* @__PURE__ */ u4(Shown, { block }, place2)) })
      ] }, section.name))
    ] })
  ] });
}
function anchor(name) {
  return name.toLowerCase().replaceAll(" ", "-");
}
function Shown({ block }) {
  switch (block.kind) {
    case "text":
      return /* @__PURE__ */ u4("p", { class: "muted wide", children: block.text });
    case "figures":
      return /* @__PURE__ */ u4("div", { class: "wide", children: /* @__PURE__ */ u4(Figures, { of: block.figures.map((one) => [one.value, one.name, "", one.foot]) }) });
    case "chart":
      return /* @__PURE__ */ u4("div", { class: "card", children: /* @__PURE__ */ u4(Chart, { label: block.title, note: block.note, points: block.points, series: block.series, unit: block.unit, axis: block.axis, height: 230 }) });
    case "bars":
      return /* @__PURE__ */ u4(Bars, { block });
    case "table":
      return block.title ? /* @__PURE__ */ u4("details", { class: "wide", children: [
        /* @__PURE__ */ u4("summary", { children: block.title }),
        /* @__PURE__ */ u4(Numbers, { block })
      ] }) : /* @__PURE__ */ u4("div", { class: "wide", children: /* @__PURE__ */ u4(Numbers, { block }) });
  }
}
function Bars({ block }) {
  const most = Math.max(0, ...block.rows.flatMap((row) => row.bars.map((bar) => bar?.value ?? 0))) || 1;
  const notes = block.last ? [{ name: block.last, right: true, of: (row) => row.note }] : [];
  return /* @__PURE__ */ u4("figure", { class: `card chart ${block.series.length > 2 ? "wide" : ""}`, "aria-label": block.title, children: [
    /* @__PURE__ */ u4("figcaption", { children: block.title }),
    block.note ? /* @__PURE__ */ u4("p", { class: "muted", children: block.note }) : null,
    /* @__PURE__ */ u4(
      Table,
      {
        label: block.title,
        rows: block.rows,
        id: (row) => row.name,
        columns: [
          { name: block.first, of: (row) => /* @__PURE__ */ u4("span", { class: "cut", children: row.name }) },
          ...block.series.map((name, place2) => ({
            name,
            key: String(place2),
            of: (row) => {
              const bar = row.bars[place2];
              return bar ? /* @__PURE__ */ u4(Meter, { label: "", value: bar.value / most, text: bar.text, tone: `colour-${place2 % COLOURS2.length}` }) : "–";
            }
          })),
          ...notes
        ]
      }
    )
  ] });
}
function Numbers({ block }) {
  const best = new Set(block.best.map(([row, column]) => `${row} ${column}`));
  const rows = block.rows.map((cells, number) => ({ cells, number }));
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4(
      Table,
      {
        label: block.title || "Numbers",
        rows,
        id: (row) => String(row.number),
        columns: block.columns.map((column, place2) => ({
          name: column.name,
          key: String(place2),
          title: column.meaning,
          right: column.right,
          of: ({ cells, number }) => best.has(`${number} ${place2}`) ? /* @__PURE__ */ u4("strong", { class: "good", children: cells[place2] }) : cells[place2]
        }))
      }
    ),
    block.left_out ? /* @__PURE__ */ u4("p", { class: "muted", children: `and ${count(block.left_out)} more` }) : null
  ] });
}

// src/main.tsx
var place = document.getElementById("app");
var report = document.getElementById("report");
if (place) R(report ? /* @__PURE__ */ u4(Report, { page: JSON.parse(report.textContent ?? "") }) : /* @__PURE__ */ u4(App, {}), place);
