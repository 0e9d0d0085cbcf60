"""The integer part of SASS (sm_90), all threads of a program at once; every address is checked."""
import re, numpy as np
M32=np.uint64(0xffffffff); U=np.uint64
class Bad(Exception): pass
def parse(text):
    code=[];labels={}
    on=False
    for line in text.split("\n"):
        m=re.match(r"^(\.L_x_\d+):",line)
        if m: labels[m[1]]=len(code); continue
        m=re.match(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(?:@(!?)(U?P[0-9T]+)\s+)?([A-Z][A-Za-z0-9_.]*)\s*(.*?)\s*;",line)
        if not m: continue
        ops=[o.strip().replace(".reuse","") for o in re.split(r",(?![^\[]*\])",m[5])] if m[5] else []
        code.append((m[1],m[2]=="!",m[3],m[4],ops,line.split("/* 0x")[0].strip()))
    return code,labels
class Machine:
    def __init__(s,params,program,T,check,shared,sbase=0x400):
        shared=shared+0x400
        s.T=T; s.R={}; s.P={}; s.local={}; s.params=params; s.program=program; s.check=check; s.shared=shared; s.odd={}; s.stats={"checked":0,"unknown":0,"shared":0}
        s.tid=np.arange(T,dtype=U); rng=np.random.default_rng(program); s.R={f'R{k}':rng.integers(0,2**32,T,dtype=np.uint64) for k in range(255)}
    def c(s,v): return np.full(s.T,v&0xffffffff,dtype=U)
    def cbank(s,off):
        if off==0x28: return s.c(0xfffdc0)
        if off in (0x208,0x20c): return s.c(0)
        for (o,size,v) in s.params:
            if o<=off<o+size:
                if v is None: return None
                return s.c((v>>(8*(off-o))))
        return None
    def get(s,o,wide=False):
        neg=inv=ab=False
        o=o.strip()
        if o.startswith("-") and not re.match(r"^-0x|^-\d",o): neg=True;o=o[1:]
        if o.startswith("~"): inv=True;o=o[1:]
        if o.startswith("|"): ab=True;o=o.strip("|")
        m=re.match(r"^c\[0x0\]\[(0x[0-9a-f]+)\]$",o)
        if m: v=s.cbank(int(m[1],16))
        elif o in("RZ","URZ","SRZ"): v=s.c(0)
        elif re.match(r"^U?R\d+$",o): v=s.R.get(o,None)
        elif re.match(r"^-?0x[0-9a-f]+$",o): v=s.c(int(o,16))
        elif re.match(r"^-?\d+$",o): v=s.c(int(o))
        elif o=="SR_TID.X": v=s.tid
        elif o=="SR_CTAID.X": v=s.c(s.program)
        elif o.startswith("SR_Cga"): v=s.c(0)
        else: v=None
        if v is None: return None
        if ab: v=np.abs(v.astype(np.uint32).view(np.int32).astype(np.int64)).astype(U)&M32
        if inv: v=(~v)&M32
        if neg: v=((~v)&M32)+U(1)      # may be 2^32: keeps the carry
        return v
    def pair(s,o):
        if o in("RZ","URZ"): return np.zeros(s.T,U)
        m=re.match(r"^c\[0x0\]\[(0x[0-9a-f]+)\]$",o)
        if m:
            a,b=s.cbank(int(m[1],16)),s.cbank(int(m[1],16)+4)
        else:
            m=re.match(r"^(-?)(U?R)(\d+)(?:\.64)?$",o)
            if not m: 
                v=s.get(o); return v
            a,b=s.R.get(m[2]+m[3]),s.R.get(m[2]+str(int(m[3])+1))
        if a is None or b is None: return None
        v=a|(b<<U(32))
        return (~v)+U(1) if o.startswith('-') else v
    def pred(s,o):
        neg=o.startswith("!"); o=o.lstrip("!")
        v=np.ones(s.T,bool) if o in("PT","UPT") else s.P.get(o)
        if v is None: return None
        return ~v if neg else v
    def setR(s,d,v,g):
        if d in("RZ","URZ"): return
        if v is not None: v=np.asarray(v).astype(U)&M32
        if g is None: v=None
        elif not g.all():
            old=s.R.get(d); v=None if v is None or old is None else np.where(g,v,old)
        s.R[d]=v
    def setP(s,d,v,g):
        if d in("PT","UPT"): return
        if g is None: v=None
        elif not g.all():
            old=s.P.get(d); v=None if v is None or old is None else np.where(g,v,old)
        s.P[d]=v
    def nxt(s,d): m=re.match(r"^(U?R)(\d+)$",d); return m[1]+str(int(m[2])+1)
def si(v): return (v&M32).astype(np.uint32).view(np.int32).astype(np.int64)
def run(code,labels,params,program,T,check,shared):
    s=Machine(params,program,T,check,shared); pc=0; n=0; alive=np.ones(T,bool)
    while pc<len(code):
        at,neg,pr,op,ops,text=code[pc]; pc+=1; n+=1
        if n>300000: raise Bad("too long")
        g=s.pred(("!" if neg else "")+pr) if pr else np.ones(T,bool)
        if g is not None and op.split(".")[0] not in("EXIT",) and not alive.all():
            if op.split(".")[0] in("LDG","STG","STS","LDS","LDGSTS","BRA"): g=g&alive
        base=op.split(".")[0]
        if base=="EXIT":
            if g is None: s.odd["exit on unknown "+text]=1; break
            alive=alive&~g
            if not alive.any(): break
            continue
        if base=="BRA":
            lab=re.search(r"\.L_x_\d+",text)[0]
            extra=[o for o in ops if re.match(r"^!?U?P[0-9T]$",o)]
            if extra:
                e=s.pred(extra[0]); g=None if e is None or g is None else g&e
            if g is None: raise Bad("branch on unknown "+text)
            if g.all(): pc=labels[lab]
            elif g.any(): s.odd["divergent "+text]=1; pc=labels[lab] if False else pc
            continue
        if base in("NOP","BAR","WARPGROUP","MEMBAR","FENCE","LDGDEPBAR","DEPBAR","WARPSYNC","BSSY","BSYNC","UCGABAR_ARV","ERRBAR","CCTL"): continue
        if base in("LDG","STG","LDGSTS"):
            o=next(x for x in ops if x.startswith("desc")); m=re.match(r"^desc\[UR\d+\]\[(U?R\d+)\.64(?:\+(UR\d+))?(?:\+?(-?0x[0-9a-f]+))?\]$",o)
            if not m: raise Bad("address "+text)
            a=s.pair(m[1]); live=g
            if base=="LDGSTS":
                z=[x for x in ops if re.match(r"^!?U?P[0-9T]$",x)]
                if z: e=s.pred(z[0]); live=None if e is None or g is None else g&e
                size=4
                d=ops[0]; md=re.match(r"^\[(R\d+)(?:\+(UR\d+))?(?:\+(-?0x[0-9a-f]+))?\]$",d); sa=s.R.get(md[1])
                if sa is not None and md[2]: u=s.R.get(md[2]); sa=None if u is None else sa+u
                if sa is None or g is None: s.stats["unknown"]+=1
                elif g.any():
                    sa=(sa+U(int(md[3] or "0",16)))&M32; s.stats["shared"]+=int(g.sum())
                    if (sa[g]+U(4)>U(shared+0x400)).any(): raise Bad(f"SHARED {text} {sa[g].max()} of {shared}")
            else: size=8 if ".64" in op else 16 if ".128" in op else 2 if "U16" in op else 4
            if a is None or live is None: s.stats["unknown"]+=1; s.odd["unknown "+text]=1
            else:
                a=a+U(int(m[3] or "0",16)&0xffffffffffffffff); s.stats["checked"]+=int(live.sum()); s.check(a[live],size,text,base)
            if base=="LDG":
                s.setR(ops[0],None,np.ones(T,bool))
            continue
        if base in("LDS","STS"):
            o=next(x for x in ops if x.startswith("[")); m=re.match(r"^\[(?:(R\d+|RZ))?\+?(UR\d+)?\+?(-?0x[0-9a-f]+)?\]$",o)
            if not m: raise Bad("shared address "+text)
            a=s.c(0)
            for x in (m[1],m[2]):
                if x and x!="RZ": v=s.R.get(x); a=None if v is None or a is None else a+v
            w=16 if ".128" in op else 8 if ".64" in op else 2 if "U16" in op else 4
            if a is None or g is None: s.stats["unknown"]+=1; s.odd["unknown "+text]=1
            elif g.any():
                a=(a+U(int(m[3] or "0",16)&0xffffffff))&M32; s.stats["shared"]+=int(g.sum())
                if (a[g]+U(w)>U(shared+0x400)).any(): raise Bad(f"SHARED {text} {a[g].max()} of {shared}")
            if base=="LDS":
                d=ops[0]
                for k in range(w//4 or 1): s.setR(d,None,np.ones(T,bool)); d=s.nxt(d) if d!="RZ" else d
            continue
        if base in("STL","LDL"):
            o=next(x for x in ops if x.startswith("[")); m=re.match(r"^\[R1(?:\+(0x[0-9a-f]+))?\]$",o)
            if not m: raise Bad("local "+text)
            off=int(m[1] or "0",16); k=2 if ".64" in op else 4 if ".128" in op else 1
            if base=="STL":
                d=ops[1]
                for j in range(k):
                    v=s.get(d) if d!="RZ" else s.c(0)
                    if g is not None and not g.all():
                        old=s.local.get(off+4*j); v=None if v is None or old is None else np.where(g,v,old)
                    s.local[off+4*j]=v; d=s.nxt(d) if d!="RZ" else d
            else:
                d=ops[0]
                for j in range(k): s.setR(d,s.local.get(off+4*j),g); d=s.nxt(d)
            continue
        if base=="HGMMA":
            u=int(re.search(r"gdesc\[UR(\d+)\]",text)[1]); two="gdesc" in ops[1]
            ds=[]
            for q in ((0,2) if two else (2,)):
                lo_,hi_=s.R.get(f"UR{u+q}"),s.R.get(f"UR{u+q+1}")
                if lo_ is None or hi_ is None: ds.append(None); s.odd["unknown desc "+text]=1; continue
                dd=lo_|(hi_<<U(32))
                if not (dd==dd[0]).all(): s.odd["desc not uniform "+text]=1
                x=int(dd[0]); ds.append((((x&0x3fff)<<4)-0x400,((x>>16)&0x3fff)<<4,((x>>32)&0x3fff)<<4,x>>62))
            s.stats.setdefault("wg",set()).add((text.split("HGMMA")[0][:12]+op.split(".")[1],u,tuple(ds)))
            N=int(re.search(r"\.64x(\d+)x",op)[1]); d=ops[0]
            for j in range(N//2): s.R[d]=None; d=s.nxt(d)
            continue
        sel=lambda f: None
        try:
            d=ops[0]
            if base in("IADD3","UIADD3"):
                i=1; pouts=[]
                while re.match(r"^U?P[0-9T]$",ops[i]): pouts.append(ops[i]); i+=1
                if "64" in op:
                    a=[s.pair(x) for x in ops[i:i+3]]
                    if any(x is None for x in a): s.setR(d,None,g); s.setR(s.nxt(d),None,g)
                    else: v=a[0]+a[1]+a[2]; s.setR(d,v&M32,g); s.setR(s.nxt(d),v>>U(32),g)
                    continue
                a=[s.get(x) for x in ops[i:i+3]]; cin=[s.pred(x) for x in ops[i+3:]]
                if any(x is None for x in a) or any(x is None for x in cin): v=None
                else:
                    v=a[0]+a[1]+a[2]
                    if ".X" in op:
                        for x in cin: v=v+x.astype(U)
                s.setR(d,v,g)
                for k,p in enumerate(pouts): s.setP(p,None if v is None else ((v>>U(32))>U(k)),g)
                continue
            if base in("IMAD","UIMAD"):
                i=1; pouts=[]
                while re.match(r"^U?P[0-9T]$",ops[i]): pouts.append(ops[i]); i+=1
                A=ops[i:]
                if "WIDE" in op:
                    a,b=s.get(A[0]),s.get(A[1]); c3=s.pair(A[2])
                    if any(x is None for x in(a,b,c3)): v=None
                    else: v=((a&M32)*(b&M32) if "U32" in op else (si(a)*si(b)).view(U))+c3
                    s.setR(d,None if v is None else v&M32,g); s.setR(s.nxt(d),None if v is None else v>>U(32),g)
                    for p in pouts: s.setP(p,None,g)
                    continue
                if "HI" in op:
                    a,b=s.get(A[0]),s.get(A[1]); 
                    c3=s.pair(A[2]) if not A[2].startswith("-") else None
                    if "U32" not in op: raise Bad(text)
                    c3=s.get(A[2]); v=None if any(x is None for x in(a,b,c3)) else (((a&M32)*(b&M32))>>U(32))+c3
                    # a 64-bit addend where it is a pair with carry
                    if v is not None and re.match(r"^U?R\d+$",A[2]):
                        pr3=s.pair(A[2]); 
                        if pr3 is not None: v=(((a&M32)*(b&M32))+ (pr3 if False else (s.get(A[2])<<U(32)) ))>>U(32)
                    s.setR(d,v,g); continue
                a,b,c3=s.get(A[0]),s.get(A[1]),s.get(A[2]); 
                z=lambda x,o: x is not None and o in("RZ","URZ")
                if z(a,A[0]) or z(b,A[1]): prod=s.c(0)
                else: prod=None if a is None or b is None else (a&M32)*(b&M32)
                v=None if prod is None or c3 is None else (prod&M32)+c3
                if ".X" in op and v is not None:
                    e=s.pred(A[3]); v=None if e is None else v+e.astype(U)
                s.setR(d,v,g)
                for p in pouts: s.setP(p,None if v is None else (v>>U(32))>U(0),g)
                continue
            if base in("LEA","ULEA"):
                i=1; pouts=[]
                while re.match(r"^U?P[0-9T]$",ops[i]): pouts.append(ops[i]); i+=1
                A=ops[i:]; a,b=s.get(A[0]),s.get(A[1])
                if "HI" not in op:
                    sh=int(A[2],16); v=None if a is None or b is None else ((a<<U(sh))&M32)+b
                elif "SX32" in op:
                    sh=int(A[2],16); v=None
                    if a is not None and b is not None:
                        v=((si(a)<<sh)>>32).view(U)&M32; v=v+b
                        if ".X" in op: e=s.pred(A[3]); v=None if e is None else v+e.astype(U)
                else:
                    c3=s.get(A[2]); sh=int(A[3],16); v=None
                    if a is not None and b is not None and c3 is not None:
                        v=((((c3&M32)<<U(32))|(a&M32))>>U(32-sh))&M32; v=v+b
                        if ".X" in op: e=s.pred(A[4]); v=None if e is None else v+e.astype(U)
                s.setR(d,v,g)
                for p in pouts: s.setP(p,None if v is None else (v>>U(32))>U(0),g)
                continue
            if base in("SHF","USHF"):
                a,sh,c3=s.get(ops[1]),s.get(ops[2]),s.get(ops[3])
                if a is None or sh is None or c3 is None: v=None
                elif ".R." in op:
                    if "S32.HI" in op: v=(si(c3)>>np.minimum(sh,U(31)).astype(np.int64)).view(U)
                    elif "U32.HI" in op: v=(c3&M32)>>sh
                    else: v=(((c3&M32)<<U(32))|(a&M32))>>sh
                else:
                    if "U64.HI" in op: v=((((c3&M32)<<U(32))|(a&M32))<<sh)>>U(32)
                    else: v=(a<<sh)&M32
                s.setR(d,v,g); continue
            if base in("LOP3","ULOP3"):
                i=0; pouts=[]
                while re.match(r"^U?P[0-9T]$",ops[i]): pouts.append(ops[i]); i+=1
                d=ops[i]; A=ops[i+1:]
                a=[s.get(x) for x in A[:3]]; lut=int(A[3],16); v=None
                # unknown inputs that the table ignores
                if all(x is not None for x in a):
                    v=np.zeros(T,U)
                    for k in range(8):
                        if lut>>k&1:
                            t=np.full(T,0xffffffff,U)
                            for x,bit in zip(a,(4,2,1)): t=t&(x if k&bit else (~x)&M32)
                            v|=t
                s.setR(d,v,g)
                for p in pouts: s.setP(p,None if v is None else (v&M32)!=0,g)
                continue
            if base in("PLOP3","UPLOP3"):
                a=[s.pred(x) for x in ops[2:5]]; l0,l1=int(ops[5],16),int(ops[6],16)
                for dd,l in((ops[0],l0),(ops[1],l1)):
                    v=None
                    if all(x is not None for x in a):
                        v=np.zeros(T,bool)
                        for k in range(8):
                            if l>>k&1:
                                t=np.ones(T,bool)
                                for x,bit in zip(a,(4,2,1)): t&=x if k&bit else ~x
                                v|=t
                    s.setP(dd,v,g)
                continue
            if base in("ISETP","UISETP"):
                m=op.split("."); cmp=m[1]; u="U32" in op; bop="AND" if "AND" in op else "OR"
                a,b=s.get(ops[2]),s.get(ops[3]); pc_=s.pred(ops[4]); v=None
                if a is not None and b is not None and pc_ is not None:
                    x,y=((a&M32),(b&M32)) if u else (si(a),si(b))
                    v={"LT":x<y,"LE":x<=y,"GT":x>y,"GE":x>=y,"EQ":x==y,"NE":x!=y}[cmp]
                    if ".EX" in op:
                        e=s.pred(ops[5])
                        strict={"LT":x<y,"LE":x<y,"GT":x>y,"GE":x>y}.get(cmp)
                        v=None if e is None else (strict|((x==y)&e)) if strict is not None else (v&e if cmp=="EQ" else v|e)
                    w=None if v is None else ~v
                    if v is not None: v,w=(v&pc_,w&pc_) if bop=="AND" else (v|pc_,w|pc_)
                else:
                    w=None
                    if pc_ is not None and bop=="AND" and not pc_.any(): v=w=np.zeros(T,bool)
                s.setP(ops[0],v,g); s.setP(ops[1],w,g); continue
            if base in("SEL","USEL"):
                a,b,p=s.get(ops[1]),s.get(ops[2]),s.pred(ops[3])
                if p is not None and p.all(): v=a
                elif p is not None and not p.any(): v=b
                else: v=None if a is None or b is None or p is None else np.where(p,a,b)
                s.setR(d,v,g); continue
            if base=="VIADD":
                a,b=s.get(ops[1]),s.get(ops[2]); s.setR(d,None if a is None or b is None else a+b,g); continue
            if base in("VIMNMX","VIADDMNMX"):
                if base=="VIADDMNMX":
                    x,y,b,p=s.get(ops[1]),s.get(ops[2]),s.get(ops[3]),s.pred(ops[4]); a=None if x is None or y is None else x+y
                else: a,b,p=s.get(ops[1]),s.get(ops[2]),s.pred(ops[3])
                if a is None or b is None or p is None: v=None
                else:
                    x,y=((a&M32).astype(np.int64),(b&M32).astype(np.int64)) if "U32" in op else (si(a),si(b))
                    v=np.where(p,np.minimum(x,y),np.maximum(x,y))
                    if "RELU" in op: v=np.maximum(v,0)
                    v=v.view(U)
                s.setR(d,v,g); continue
            if base=="PRMT":
                a,c_,b=s.get(ops[1]),s.get(ops[2]),s.get(ops[3])
                if a is None or b is None or c_ is None: v=None
                else:
                    src=(a&M32)|((b&M32)<<U(32)); v=np.zeros(T,U)
                    for k in range(4):
                        nib=(c_>>U(4*k))&U(15); byte=(src>>((nib&U(7))*U(8)))&U(255)
                        byte=np.where((nib&U(8))!=0,np.where(byte&U(128),U(255),U(0)),byte); v|=byte.astype(U)<<U(8*k)
                s.setR(d,v,g); continue
            if base in("MOV","UMOV"):
                s.setR(d,s.get(ops[1]),g); continue
            if base in("S2R","S2UR"): s.setR(d,s.get(ops[1]),g); continue
            if base=="CS2R":
                s.setR(d,s.c(0) if ops[1]=="SRZ" else None,g)
                if ".32" not in op: s.setR(s.nxt(d),s.c(0) if ops[1]=="SRZ" else None,g)
                continue
            if base in("LDC","ULDC"):
                off=re.search(r"\[0x0\]\[(0x[0-9a-f]+)\]",text); off=int(off[1],16)
                s.setR(d,s.cbank(off),g)
                if ".64" in op: s.setR(s.nxt(d),s.cbank(off+4),g)
                continue
            if base=="R2UR":
                v=s.get(ops[-1])
                if v is not None:
                    w=v.reshape(-1,32)
                    if not (w==w[:,:1]).all(): s.odd["not uniform "+text]=1
                s.setR(d,v,g); continue
            if base=="IABS": v=s.get(ops[1]); s.setR(d,None if v is None else np.abs(si(v)).view(U),g); continue
            if base=="SGXT" or base=="USGXT":
                a,k=s.get(ops[1]),s.get(ops[2]); v=None
                if a is not None and k is not None:
                    k=int(k[0]); m_=(1<<k)-1; v=a&U(m_)
                    if "U32" not in op: v=np.where(v&U(1<<(k-1)),v|U(0xffffffff&~m_),v)
                s.setR(d,v,g); continue
            if base=="P2R":
                m_=int(ops[3],16); a=s.get(ops[2]); v=None
                bits=[s.P.get(f"P{k}") for k in range(7)]
                v=a&U(0xffffffff&~m_) if a is not None else None
                for k in range(7):
                    if m_>>k&1: v=None if v is None or bits[k] is None else v|(bits[k].astype(U)<<U(k))
                if ".B" in op: raise Bad(text)
                s.setR(d,v,g); continue
            if base=="I2F":
                v=s.get(ops[-1]); s.setR(d,None if v is None else np.nextafter(((v&M32) if True else 0).astype(np.float32),np.float32(0) if False else np.float32(3e38)).view(np.uint32).astype(U) if "RP" in op and False else (v&M32).astype(np.float32).view(np.uint32).astype(U),g); continue
            if base=="MUFU" and "RCP" in op:
                v=s.get(ops[1]); 
                with np.errstate(all="ignore"): s.setR(d,None if v is None else (np.float32(1)/v.astype(np.uint32).view(np.float32)).view(np.uint32).astype(U),g)
                continue
            if base=="F2I":
                v=s.get(ops[1]); s.setR(d,None if v is None else np.clip(np.nan_to_num(v.astype(np.uint32).view(np.float32).astype(np.float64)),0,4294967295).astype(U),g); continue
            # floats: destination unknown
            if re.match(r"^U?R\d+$",d):
                s.setR(d,None,np.ones(T,bool))
                if base not in("FADD","FMUL","FFMA","FSEL","FMNMX","MUFU","F2FP","I2FP","HFMA2","SHFL","FSET"): s.odd["op "+op]=1
            if base in("FSETP","SHFL"):
                for x in ops[:2]:
                    if re.match(r"^P[0-6]$",x): s.setP(x,None,np.ones(T,bool))
                if base=="SHFL": s.setR(ops[1],None,np.ones(T,bool))
        except Bad: raise
        except Exception as e: raise Bad(f"{text}: {type(e).__name__} {e}")
    s.stats["odd"]=s.odd
    return s.stats
